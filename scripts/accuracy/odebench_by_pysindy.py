"""ODEBench by PySINDy, on the records that `python -m node_fit.benchmark odebench --method discover` has.

    pip install pysindy sympy  # 2.1
    python scripts/accuracy/odebench_by_pysindy.py [--noise 0.05] [--rows all] [--seed 1] [--only NUMBER ...]

It is fitted with its defaults (polynomials of degree 2, finite differences, a threshold of 0.1), and with the
degree (2 or 3), the differences (smoothed or not) and the one of twelve thresholds whose simulation of the noisy record
is best.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator

import numpy as np

from node_fit.benchmark.__main__ import draw_record, has_same_terms, r_squared
from node_fit.benchmark.protocols import GOOD_R2_SHARE, Equation, read_equations
from node_fit.data.dataset import Dataset
from node_fit.discover.search import solve_or_give_up

THRESHOLDS = np.geomspace(3.0, 1e-3, 12)


def fit(data: Dataset, **options):
    """A PySINDy model of a record, or None if it fails."""
    import pysindy

    model = pysindy.SINDy(**options)
    with warnings.catch_warnings(action="ignore"):
        try:
            return model.fit(data.ys[0], t=data.ts[0], feature_names=list(data.states))
        except (ValueError, np.linalg.LinAlgError):
            return None


def simulate(model, start: np.ndarray, ts: np.ndarray) -> np.ndarray | None:
    """States of a polynomial model, `(row, state)`, by the solver and with the limits of `discover`."""
    powers, constants = model.feature_library.powers_, model.coefficients()
    return solve_or_give_up(lambda t, y: constants @ np.prod(y**powers, axis=1), start, ts)


def fit_by_defaults(data: Dataset) -> Iterator:
    yield fit(data)


def fit_tuned(data: Dataset) -> Iterator:
    """Models of all degrees, differences and thresholds."""
    import pysindy

    for degree, differences, threshold in itertools.product(
        (2, 3), (pysindy.FiniteDifference, pysindy.SmoothedFiniteDifference), THRESHOLDS
    ):
        yield fit(
            data,
            optimizer=pysindy.STLSQ(threshold=threshold),
            feature_library=pysindy.PolynomialLibrary(degree=degree),
            differentiation_method=differences(),
        )


def has_true_terms(model, equation: Equation) -> bool:
    """Whether the terms are the true ones, whatever their constants."""
    powers, states = model.feature_library.powers_, equation.states
    monomials = ["*".join(["1", *[f"{name}**{power}" for name, power in zip(states, row)]]) for row in powers]  # noqa: B905
    for (_, text), row in zip(equation.equations.texts, model.coefficients(), strict=True):
        found = " + ".join(f"{value!r}*{each}" for value, each in zip(row.tolist(), monomials, strict=True) if value)
        if not has_same_terms(text, found or "0", states):
            return False
    return True


WAYS = {"defaults": fit_by_defaults, "tuned": fit_tuned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--rows", choices=("all", "half"), default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", type=int, help="numbers of systems")
    given = parser.parse_args()
    reached: dict[str, list[tuple[float, float, bool, float]]] = {what: [] for what in WAYS}
    for equation in read_equations():
        if given.only and equation.number not in given.only:
            continue
        t, clean, data = draw_record(equation, given.noise, given.rows, given.seed)
        for what, models in WAYS.items():
            began, best, highest = time.process_time(), None, -np.inf
            for model in filter(None, models(data)):
                solved = simulate(model, data.ys[0, 0], data.ts[0])
                r2 = r_squared(data.ys[0], solved)
                if best is None or r2 > highest:
                    best, highest = model, r2
            seconds = time.process_time() - began
            same, other = (-np.inf if best is None else r_squared(true, simulate(best, true[0], t)) for true in clean)
            exact = best is not None and has_true_terms(best, equation)
            reached[what].append((same, other, exact, seconds))
            print(f"{equation.number} {what}: {same:.3f}, {other:.3f}, {exact}, {seconds:.1f} s", flush=True)
    for what, every in reached.items():
        same, other, exact, seconds = np.array(every, float).T
        good = [int((r2 > GOOD_R2_SHARE).sum()) for r2 in (same, other)]
        print(
            f"{what}, noise {100 * given.noise:g} %, {given.rows} rows, of {len(every)}: same start {good[0]}, "
            f"other start {good[1]}, true terms {int(exact.sum())}, median {np.median(seconds):.1f} s"
        )


if __name__ == "__main__":
    main()
