"""Runs `discover` on ODEBench, and counts R² above 0.9 from the start of the record and from the other start.

    python scripts/discover_odebench.py --noise 0.02 --every 4 [--half] [--seed 0] [--effort 30]

Protocol of S. d'Ascoli et al., ODEFormer (2024): 150 rows, times 1 + noise, all rows or a random half; R² against the
clean trajectory. Published, other start, all rows: PySR 50.8 % and ODEFormer 34.9 % clean; ODEFormer 41.3 % at 2 %
and 36.5 % at 5 %.
"""

import argparse
import time

import numpy as np
from scipy.integrate import solve_ivp

from node_fit.benchmark.protocols import LAST_SOLVED_TIME as END
from node_fit.benchmark.protocols import ROWS_OF_EQUATION as ROWS
from node_fit.benchmark.protocols import Equation, read_equations
from node_fit.data.dataset import Dataset
from node_fit.discover.discovery import Discovery, discover
from node_fit.discover.formulas import SCALAR, compile_text
from node_fit.discover.judging import integrate

ENOUGH = 0.9


def solve(texts: list[str], names: list[str], start: np.ndarray, t: np.ndarray) -> np.ndarray | None:
    """The trajectory of equations with numbers, `(row, state)`."""
    rates = [compile_text(text, names, SCALAR) for text in texts]
    return integrate(lambda y, _: [float(rate([float(v) for v in y])) for rate in rates], start, t)


def simulate_truth(equation: Equation, start: tuple[float, ...], t: np.ndarray) -> np.ndarray:
    rates = equation.rates()
    solved = solve_ivp(lambda _, y: rates(y), (0, END), start, t_eval=t, method="LSODA", rtol=1e-9, atol=1e-11)
    return solved.y.T


def r_squared(true: np.ndarray, found: np.ndarray | None) -> float:
    """The mean over states of the share of variance explained; minus infinity without a simulation."""
    if found is None:
        return -np.inf
    total = np.maximum(((true - true.mean(0)) ** 2).sum(0), 1e-300)
    return float(np.mean(1 - ((true - found) ** 2).sum(0) / total))


def judge_both(equation: Equation, found: Discovery, clean: list[np.ndarray], t: np.ndarray) -> list[float]:
    """R² from both starts."""
    names = equation.states
    best = found.found
    texts = []
    for state in names:
        text = best.equations[state]
        for name in sorted(best.constants, key=len, reverse=True):
            text = text.replace(name, f"({best.constants[name]!r})")
        texts.append(text)
    return [r_squared(true, solve(texts, names, true[0], t)) for true in clean]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1, help="take every so many systems")
    parser.add_argument("--first", type=int, default=0, help="place of the first system that is taken")
    parser.add_argument("--half", action="store_true", help="a random half of the rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "thorough"))
    given = parser.parse_args()
    draw, t = np.random.default_rng(given.seed), np.linspace(0, END, ROWS)
    counts, seconds = np.zeros(2, int), []
    for equation in read_equations()[given.first :: given.every]:
        clean = [simulate_truth(equation, start, t) for start in equation.starts]
        noisy = clean[0] * (1 + given.noise * draw.standard_normal(clean[0].shape))
        rows = np.sort(draw.choice(ROWS, ROWS // 2, replace=False)) if given.half else np.arange(ROWS)
        began = time.perf_counter()
        try:
            data = Dataset.from_arrays(t[rows], noisy[rows], states=equation.states)
            found = discover(data, effort=given.effort, resamples=0)
            reached, said = judge_both(equation, found, clean, t), str(found.found).replace("\n", "; ")
        except (ValueError, ArithmeticError, np.linalg.LinAlgError, TypeError, KeyError) as error:
            reached, said = [-np.inf, -np.inf], f"{type(error).__name__}: {error}"
        seconds.append(time.perf_counter() - began)
        counts += np.array(reached) > ENOUGH
        same, other = reached
        print(f"{equation.number} same {same:.3f} other {other:.3f} {seconds[-1]:.0f} s | {said}", flush=True)
        print(
            f"  so far: same start {counts[0]}, other start {counts[1]} of {len(seconds)}; "
            f"median {np.median(seconds):.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
