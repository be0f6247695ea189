"""ODEBench by discovery: equations found in one noisy trajectory, simulated from its start and from another one.

The protocol is that of S. d'Ascoli et al., ODEFormer (ICLR 2024, arXiv 2310.05573), section 5: 150 rows on [0, 10],
times 1 + noise, all of them or a random half; a system counts if R² against the trajectory without noise exceeds 0.9.
"""

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..discover.discovery import FoundSystem, discover
from ..discover.formulas import Tape
from ..fitting.ladder import Effort
from .protocols import (
    EQUATIONS,
    GOOD_R2_SHARE,
    LAST_SOLVED_TIME,
    ROWS_OF_EQUATION,
    Equation,
    read_equations,
    solve_equation,
)

Rows = Literal["all", "half"]
# Published shares of systems [%] with R² above 0.9, by noise and rows: whose, from the same start, from the other one.
PUBLISHED: dict[tuple[float, str], tuple[tuple[str, float | None, float], ...]] = {
    (0.0, "all"): (("PySR", None, 50.8), ("ODEFormer", None, 34.9)),
    (0.02, "all"): (("ODEFormer", None, 41.3),),
    (0.05, "all"): (("ODEFormer", None, 36.5), ("PySR", None, 19.0)),
    (0.05, "half"): (("ODEFormer", 66.7, 33.3), ("PySR", 38.1, 14.3)),
}
MOST_SOLVER_STEPS = 2000
DISCOVERY_HEAD = "| system | same start | other start | true terms | s | equations |\n|---|---|---|---|---|---|"


class Reached(NamedTuple):
    """R² from both starts, whether the terms are the true ones (None without SymPy), seconds, and the equations."""

    same: float
    other: float
    true_terms: bool | None
    seconds: float
    found: str


def run_discovery(numbers: Sequence[int], noise: float, rows: Rows, effort: Effort, seed: int) -> None:
    """Prints what is found in each system, then the shares beside published ones."""
    print(DISCOVERY_HEAD, flush=True)
    outcomes = []
    for equation in read_equations():
        if equation.number in numbers:
            outcomes.append(each := find_equations(equation, noise, rows, effort, seed))
            terms = {None: "-", True: "yes", False: "no"}[each.true_terms]
            print(
                f"| {equation.number} {equation.what} | {each.same:.3f} | {each.other:.3f} | {terms} "
                f"| {each.seconds:.1f} | {each.found} |",
                flush=True,
            )
    print(*summary_lines(outcomes, noise, rows), sep="\n")


def find_equations(equation: Equation, noise: float, rows: Rows, effort: Effort, seed: int) -> Reached:
    """Finds the equations of a system in its first trajectory; what is drawn depends on the seed and its number."""
    t, draw = np.linspace(0, LAST_SOLVED_TIME, ROWS_OF_EQUATION), np.random.default_rng((seed, equation.number))
    clean = solve_equation(equation, t)
    noisy = clean[0] * (1 + noise * draw.standard_normal(clean[0].shape))
    taken = np.sort(draw.choice(len(t), len(t) // 2, replace=False)) if rows == "half" else np.arange(len(t))
    began = time.process_time()
    data = Dataset.from_arrays(t[taken], noisy[taken], states=equation.states)
    found = discover(data, effort=effort, resamples=0, seed=seed).found
    seconds = time.process_time() - began
    same, other = (r_squared(true, simulate_found(found, true[0], t)) for true in clean)
    return Reached(same, other, has_true_terms(equation, found), seconds, "; ".join(found.shown.values()))


def simulate_found(found: FoundSystem, start: np.ndarray, t: np.ndarray) -> np.ndarray | None:
    """States at times, `(time, state)`; None if the solver gives up."""
    from scipy.integrate import solve_ivp

    rates = Tape(list(found.equations.values()), [*found.equations, *found.constants])
    constants, evaluations = list(found.constants.values()), 0

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        nonlocal evaluations
        evaluations += 1
        if evaluations > 10 * MOST_SOLVER_STEPS or not np.isfinite(y).all():
            raise ArithmeticError
        return np.array(rates([*y, *constants]), float)

    try:
        with np.errstate(all="ignore"):
            done = solve_ivp(slope, (t[0], t[-1]), start, t_eval=t, method="LSODA", rtol=1e-7, atol=1e-9)
    except ArithmeticError:
        return None
    return done.y.T if done.success and np.isfinite(done.y).all() else None


def r_squared(true: np.ndarray, found: np.ndarray | None) -> float:
    """The mean over states of the share of variance explained; minus infinity without a simulation."""
    if found is None:
        return -np.inf
    total = np.maximum(((true - true.mean(0)) ** 2).sum(0), 1e-300)
    return float(np.mean(1 - ((true - found) ** 2).sum(0) / total))


def has_true_terms(equation: Equation, found: FoundSystem) -> bool | None:
    """Whether each rate is a sum of the true terms, whatever their constants; None if SymPy is not installed."""
    try:
        import sympy
    except ImportError:
        return None
    names, constant = {name: sympy.Symbol(name) for name in equation.states}, sympy.Symbol("constant_")

    def terms(text: str) -> set[object]:
        parts = sympy.Add.make_args(sympy.expand(sympy.parse_expr(text.replace("^", "**"), local_dict=names)))
        bare = [part.as_coeff_Mul()[1] for part in parts]
        return {each.replace(lambda node: node.is_Float, lambda _: constant) for each in bare}

    return all(terms(text) == terms(found.shown[name]) for name, text in equation.equations.texts)


def summary_lines(outcomes: Sequence[Reached], noise: float, rows: Rows) -> list[str]:
    """The shares, ours and published ones."""
    many = len(outcomes)
    same, other = (sum(value > GOOD_R2_SHARE for value in pair) for pair in zip(*[each[:2] for each in outcomes]))  # noqa: B905
    true_terms = sum(each.true_terms is True for each in outcomes)
    lines = [
        "",
        f"{many} of {EQUATIONS} systems, noise {100 * noise:g} %, {rows} rows: R² above {GOOD_R2_SHARE}",
        "| whose | same start | other start |",
        "|---|---|---|",
        f"| node_fit | {same} ({100 * same / many:.1f} %) | {other} ({100 * other / many:.1f} %) |",
    ]
    for whose, theirs_same, theirs_other in PUBLISHED.get((noise, rows), ()):
        lines.append(f"| {whose} | {'-' if theirs_same is None else f'{theirs_same} %'} | {theirs_other} % |")
    lines.append(
        f"Exactly the true terms: {true_terms}. Median {np.median([each.seconds for each in outcomes]):.1f} s."
    )
    return lines
