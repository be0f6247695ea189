"""Counts systems whose true terms `discover` returns first: saturating terms and polynomials, with noise.

    python scripts/accuracy/discover_true_terms.py [--systems counted] [--effort normal] [--seeds 3] [--only NAME ...]

Each record is simulated from some starts, with noise of a share of each state's standard deviation. Choices in the
search were made on the systems of `--systems design` alone; those of `counted` were tried once they had been made.
Terms are the true ones if SymPy finds no difference but constants (`pip install "node_fit[discover]"`).
"""

import argparse
import time
from typing import NamedTuple

import numpy as np

from node_fit.benchmark.__main__ import has_same_terms
from node_fit.data.dataset import Dataset
from node_fit.discover.search import FoundSystem
from node_fit.fitting.discovery import discover

ROWS = 50


class System(NamedTuple):
    """The rate of each state, starts of the records, and their last time."""

    rates: dict[str, str]
    starts: list[tuple[float, ...]]
    last: float


DESIGN = {
    "saturating": {
        "grazing (Rosenzweig and MacArthur)": System(
            {"x": "x - 0.4*x**2 - 1.5*x*y/(0.6 + x)", "y": "0.9*x*y/(0.6 + x) - 0.35*y"},
            [(0.4, 0.5), (1.8, 0.3), (1.0, 1.0)], 20.0,
        ),
        "batch culture (Monod)": System(
            {"s": "-1.6*s*b/(0.7 + s)", "b": "0.8*s*b/(0.7 + s)"}, [(4.0, 0.1), (2.0, 0.3), (1.0, 0.6)], 8.0
        ),
        "inhibited culture (Haldane)": System(
            {"s": "-1.5*s*b/(0.5 + s + 0.3*s**2)", "b": "0.9*s*b/(0.5 + s + 0.3*s**2)"},
            [(6.0, 0.2), (3.0, 0.2), (1.5, 0.5)], 10.0,
        ),
        "toggle switch": System(
            {"u": "2.5/(1 + v**2) - u", "v": "2.2/(1 + u**2) - v"}, [(0.2, 1.5), (2.0, 0.4), (1.0, 1.1)], 8.0
        ),
        "elimination (Michaelis and Menten)": System({"c": "-1.2*c/(0.8 + c)"}, [(5.0,), (2.0,), (0.8,)], 8.0),
        "gene that activates itself (Hill)": System(
            {"p": "0.2 + 2*p**2/(1.2**2 + p**2) - 0.8*p"}, [(0.1,), (0.6,), (4.0,)], 10.0
        ),
        "predation (Holling III)": System(
            {"x": "0.9*x - 0.2*x**2 - 1.2*x**2*y/(1.0**2 + x**2)", "y": "0.8*x**2*y/(1.0**2 + x**2) - 0.4*y"},
            [(0.5, 0.5), (3.0, 0.4), (1.5, 1.5)], 20.0,
        ),
        "absorption and elimination": System(
            {"a": "-0.7*a", "c": "0.7*a - 1.1*c/(1.5 + c)"}, [(6.0, 0.2), (3.0, 2.0), (1.0, 4.0)], 12.0
        ),
        "infusion": System({"c": "0.6 - 1.4*c/(1.0 + c)"}, [(4.0,), (0.05,), (1.5,)], 12.0),
        "gene that represses itself": System(
            {"m": "2/(1 + p**2) - 0.8*m", "p": "m - 0.6*p"}, [(0.1, 0.1), (2.0, 0.5), (0.5, 2.5)], 10.0
        ),
    },
    "polynomial": {
        "logistic growth": System({"x": "0.7*x - 0.07*x**2"}, [(0.5,), (2.0,), (15.0,)], 12.0),
        "three competitors": System(
            {"a": "a - a**2 - a*c", "b": "b - b**2 + 0.1*b*c", "c": "c - c**2"},
            [(0.14, 0.82, 0.04), (0.6, 0.1, 0.3), (0.9, 0.4, 0.1), (0.2, 1.3, 1.4)], 8.0,
        ),
        "neuron (FitzHugh and Nagumo)": System(
            {"x": "x - 0.3333*x**3 - y + 0.5", "y": "0.08*x + 0.056 - 0.064*y"},
            [(-1.0, 1.0), (1.0, 0.0), (2.0, 1.5)], 40.0
        ),
        "predator and prey": System(
            {"x": "x - 0.5*x*y", "y": "0.3*x*y - 0.8*y"}, [(4.0, 1.0), (2.0, 2.0), (1.0, 3.0)], 12.0
        ),
        "glycolysis (Selkov)": System(
            {"x": "-x + 0.1*y + x**2*y", "y": "0.6 - 0.1*y - x**2*y"}, [(0.4, 1.5), (1.2, 0.8), (0.8, 2.0)], 15.0
        ),
    },
}  # fmt: skip
COUNTED = {
    "saturating": {
        "chemostat": System(
            {"s": "0.3*(4 - s) - 1.8*s*b/(0.9 + s)", "b": "0.9*s*b/(0.9 + s) - 0.3*b"},
            [(4.0, 0.1), (0.5, 2.5), (2.0, 0.6)], 15.0,
        ),
        "budworms": System(
            {"x": "0.6*x - 0.06*x**2 - x**2/(1.0**2 + x**2)"}, [(0.3,), (3.0,), (9.5,)], 15.0
        ),
        "epidemic with saturated incidence": System(
            {"s": "-0.9*s*i/(0.8 + i)", "i": "0.9*s*i/(0.8 + i) - 0.35*i"}, [(3.0, 0.1), (1.5, 0.5), (2.0, 2.0)], 12.0
        ),
        "epidemic with few beds": System(
            {"s": "-0.25*s*i", "i": "0.25*s*i - 0.9*i/(0.7 + i)"}, [(6.0, 0.3), (4.0, 2.0), (2.0, 4.0)], 10.0
        ),
        "harvest of a logistic stock": System(
            {"x": "1.1*x - 0.12*x**2 - 1.5*x/(1.2 + x)"}, [(0.8,), (3.0,), (12.0,)], 10.0
        ),
        "lake and phosphorus": System(
            {"p": "0.15 - 0.7*p + 1.6*p**2/(1.1**2 + p**2)"}, [(0.05,), (1.0,), (3.5,)], 12.0
        ),
        "messenger and repressor": System(
            {"m": "1.8/(0.9 + p**2) - 0.6*m", "p": "0.8*m - 0.5*p"}, [(0.2, 0.2), (2.5, 0.4), (1.0, 3.0)], 12.0
        ),
        "dose with two compartments": System(
            {"c": "0.4*d - 0.5*c - 1.3*c/(0.9 + c)", "d": "0.5*c - 0.4*d"}, [(6.0, 0.1), (2.0, 3.0), (1.0, 5.0)], 10.0
        ),
        "two mutualists": System(
            {"x": "0.5*x - 0.3*x**2 + 0.8*x*y/(1.2 + y)", "y": "0.4*y - 0.25*y**2 + 0.6*x*y/(0.9 + x)"},
            [(0.2, 0.3), (6.0, 0.5), (0.5, 7.0)], 10.0,
        ),
        "inhibited reactor (Haldane)": System(
            {"s": "0.4*(5 - s) - 1.6*s*b/(0.6 + s + 0.25*s**2)", "b": "1.1*s*b/(0.6 + s + 0.25*s**2) - 0.4*b"},
            [(5.0, 0.4), (1.0, 1.5), (3.0, 1.0)], 12.0,
        ),
    },
    "polynomial": {
        "Brusselator": System(
            {"x": "1 - 3.2*x + x**2*y", "y": "2.2*x - x**2*y"}, [(0.6, 2.5), (2.0, 1.0), (1.2, 3.0)], 15.0
        ),
        "two competitors": System(
            {"x": "1.2*x - 0.4*x**2 - 0.5*x*y", "y": "0.9*y - 0.3*y**2 - 0.2*x*y"},
            [(0.2, 0.3), (3.0, 0.5), (1.0, 4.0)], 10.0,
        ),
        "damped double well": System(
            {"x": "v", "v": "x - x**3 - 0.25*v"}, [(0.2, 0.0), (-1.8, 0.5), (1.6, 1.0)], 15.0
        ),
        "three classes of an epidemic": System(
            {"s": "-0.5*s*i + 0.1*r", "i": "0.5*s*i - 0.4*i", "r": "0.4*i - 0.1*r"},
            [(3.0, 0.1, 0.0), (2.0, 0.5, 1.0), (1.0, 1.5, 2.0)], 20.0,
        ),
        "three waves in a flow": System(
            {"x": "-0.3*x + y*z", "y": "-0.4*y - 0.8*x*z + 0.9", "z": "-0.5*z - 0.2*x*y + 0.7"},
            [(1.0, 2.0, 1.0), (-1.5, 1.0, 2.0), (0.5, -1.0, -1.0)], 15.0,
        ),
    },
}  # fmt: skip


def draw_data(system: System, noise: float, seed: int) -> Dataset:
    """Records of a system with noise of a share of each state's standard deviation."""
    ts = np.linspace(0, system.last, ROWS)
    exact = FoundSystem(system.rates, {}, system.rates, 0.0, 0, 0.0, False)
    solved = [exact.simulate(start, ts) for start in system.starts]
    clean = np.stack([ys for ys in solved if ys is not None])
    draw = np.random.default_rng(seed).standard_normal(clean.shape)
    return Dataset.from_arrays(ts, clean + noise * clean.std(axis=(0, 1)) * draw, states=list(system.rates))


def has_true_terms(system: System, found: FoundSystem) -> bool:
    return all(has_same_terms(text, found.shown[state], list(system.rates)) for state, text in system.rates.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="counted", choices=("counted", "design"))
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "thorough"))
    parser.add_argument("--noise", type=float, default=0.02, help="share of each state's standard deviation")
    parser.add_argument("--seeds", type=int, default=3, help="draws of the noise")
    parser.add_argument("--only", nargs="*", default=[], help="names of systems, or how they begin")
    given = parser.parse_args()
    for kind, systems in (COUNTED if given.systems == "counted" else DESIGN).items():
        right = draws = 0
        for name, system in systems.items():
            if given.only and not name.startswith(tuple(given.only)):
                continue
            for seed in range(given.seeds):
                began = time.process_time()
                data = draw_data(system, given.noise, seed)
                best = discover(data, effort=given.effort, resamples=0, symbolic=False).found
                is_right = has_true_terms(system, best)
                right, draws = right + is_right, draws + 1
                shown = "; ".join(f"{state}' = {text}" for state, text in best.shown.items())
                took = time.process_time() - began
                print(f"{'right' if is_right else 'WRONG'} {name}, {seed}, {took:.0f} s: {shown}", flush=True)
        print(f"{kind}: true terms first in {right} of {draws}", flush=True)


if __name__ == "__main__":
    main()
