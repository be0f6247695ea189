"""The command `python -m node_fit.benchmark`: compares results on published protocols with published figures.

With `--method discover`, equations are identified from one noisy trajectory of each of ODEBench's systems, and
simulated from its initial state and from another one. The protocol is that of S. d'Ascoli et al., ODEFormer (ICLR 2024,
arXiv 2310.05573), section 5: 150 rows on [0, 10], times 1 + noise, all of them or a random half; a system counts if R²
against the trajectory without noise exceeds 0.9.
"""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..discover.search import FoundSystem
from ..fitting.discovery import discover
from ..options.options import Effort
from ..runtime.serialization import Json, __version__
from .protocols import (
    EQUATIONS,
    GOOD_R2_SHARE,
    HEAD,
    LAST_SOLVED_TIME,
    PROTOCOLS,
    ROWS_OF_EQUATION,
    Equation,
    Protocol,
    odebench_lines,
    read_equations,
    solve_equation,
    table_rows,
)

if TYPE_CHECKING:
    from sympy import Expr, Symbol

NUMBERED = [name for name in PROTOCOLS if name.startswith("odebench_")]
CHOICES = (
    f"all, {', '.join(name for name in PROTOCOLS if name not in NUMBERED)}, odebench (its {len(NUMBERED)} equations), "
    f"or one of {NUMBERED[0]} to {NUMBERED[-1]}"
)

Rows = Literal["all", "half"]
# Published shares of systems [%] with R² above 0.9, by noise and rows: method, from the same start, from the other one.
PUBLISHED: dict[tuple[float, str], tuple[tuple[str, float | None, float], ...]] = {
    (0.0, "all"): (("PySR", None, 50.8), ("ODEFormer", None, 34.9)),
    (0.02, "all"): (("ODEFormer", None, 41.3),),
    (0.05, "all"): (("ODEFormer", None, 36.5), ("PySR", None, 19.0)),
    (0.05, "half"): (("ODEFormer", 66.7, 33.3), ("PySR", 38.1, 14.3)),
}
DISCOVERY_HEAD = "| system | same start | other start | true terms | s | equations |\n|---|---|---|---|---|---|"


def main() -> None:
    """Parses the command line, runs the protocols and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.benchmark",
        description="Run published protocols, and print the results beside other figures and their sources.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help=CHOICES)
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the measured records (datasets)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further words of each command")
    parser.add_argument(
        "--method", choices=("fit", "discover"), default="fit", help="of ODEBench: find equations (fit)"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="with --method discover: rows times 1 + noise (0)")
    parser.add_argument("--rows", choices=("all", "half"), default="all", help="with --method discover (all)")
    parser.add_argument(
        "--effort", choices=("quick", "normal", "thorough"), default="normal", help="of discover (normal)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the noise and the rows of --method discover (0)")
    given = parser.parse_args()
    try:
        if given.method == "discover":
            numbers = [int(name.removeprefix("odebench_")) for name in choose_problems(given.names) if name in NUMBERED]
            run_discovery(numbers, given.noise, given.rows, given.effort, given.seed)
            return
        failed = run_all(choose_problems(given.names), given.data, given.set)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(1 if failed else 0)


def choose_problems(names: Sequence[str]) -> dict[str, Protocol]:
    """Returns the protocols of these names.

    **Raises:** `ValueError` if no such protocol exists.
    """
    matches = {name: [protocol for protocol in PROTOCOLS if is_one(protocol, name)] for name in names}
    for name, protocols in matches.items():
        if not protocols:
            raise ValueError(f"there is no protocol {name!r}; choose {CHOICES}.")
    return {protocol: PROTOCOLS[protocol] for protocols in matches.values() for protocol in protocols}


def is_one(protocol: str, name: str) -> bool:
    """Whether a protocol, or its family, has this name."""
    return name == "all" or f"{protocol}_".startswith(f"{name}_")


def run_all(protocols: dict[str, Protocol], data: Path, words: Sequence[str]) -> list[str]:
    """Runs protocols and prints a line for each figure; protocols without data are skipped and listed.

    **Returns:** the names of the protocols with a failed command.
    """
    print(HEAD, flush=True)
    odebench: list[Json] = []
    absent: list[str] = []
    failed: list[str] = []
    for name, protocol in protocols.items():
        if protocol.file and not (data / protocol.file).is_file():
            absent.append(f"{name}: left out, since {data / protocol.file} is absent; the data: {protocol.source}")
            continue
        began = time.perf_counter()
        try:
            summary = run_problem(protocol, data, words)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print(*table_rows(name, protocol, summary), sep="\n", flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if name.startswith("odebench"):
            odebench.append(summary)
    if len(odebench) > 1:
        print(*odebench_lines(odebench), sep="\n")
    for line in absent:
        print(line, file=sys.stderr)
    return failed


def run_problem(protocol: Protocol, data: Path, words: Sequence[str]) -> Json:
    """Runs the command of a protocol in a separate process and folder; returns its `summary.json`.

    **Raises:** `ValueError` with the output of the command if it fails.
    """
    with TemporaryDirectory() as folder:
        path = (data / protocol.file).absolute() if protocol.file else Path(folder) / "table.csv"
        if protocol.make:
            protocol.make(path)
        command = [sys.executable, "-m", "node_fit", *protocol.words, f"data.path={path}", "hydra.run.dir=run", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        summary = Path(folder) / "run" / "summary.json"
        if done.returncode or not summary.is_file():
            said = "\n".join([*done.stdout.splitlines()[-10:], done.stderr.strip()])
            raise ValueError(f"the command ended with exit code {done.returncode}: {shlex.join(command[1:])}\n{said}")
        report = json.loads(summary.read_text())
        return report if protocol.judge is None else report | {"judged": protocol.judge(summary.parent)}


class Reached(NamedTuple):
    """R² from both starts, whether the terms are the true ones (None without SymPy), seconds, and the equations."""

    same: float
    other: float
    true_terms: bool | None
    seconds: float
    found: str


def run_discovery(numbers: Sequence[int], noise: float, rows: Rows, effort: Effort, seed: int) -> None:
    """Prints the results for each system, then a comparison of the shares with published ones."""
    print(DISCOVERY_HEAD, flush=True)
    outcomes: list[Reached] = []
    for equation in read_equations():
        if equation.number in numbers:
            outcomes.append(reached := recover_equations(equation, noise, rows, effort, seed))
            terms = {None: "-", True: "yes", False: "no"}[reached.true_terms]
            print(
                f"| {equation.number} {equation.what} | {reached.same:.3f} | {reached.other:.3f} | {terms} "
                f"| {reached.seconds:.1f} | {reached.found} |",
                flush=True,
            )
    print(*summary_lines(outcomes, noise, rows), sep="\n")


def recover_equations(equation: Equation, noise: float, rows: Rows, effort: Effort, seed: int) -> Reached:
    """Identifies the equations of a system from its first trajectory."""
    t, clean, data = draw_record(equation, noise, rows, seed)
    began = time.process_time()
    system = discover(data, effort=effort, resamples=0, seed=seed).found
    seconds = time.process_time() - began
    same, other = (r_squared(true, system.simulate(true[0], t)) for true in clean)
    return Reached(same, other, has_true_terms(equation, system), seconds, "; ".join(system.shown.values()))


def draw_record(
    equation: Equation, noise: float, rows: Rows, seed: int
) -> tuple[np.ndarray, list[np.ndarray], Dataset]:
    """Returns times, both trajectories of a system without noise, and rows of the first one with noise.

    The random numbers depend on the seed and the system's number.
    """
    t, draw = np.linspace(0, LAST_SOLVED_TIME, ROWS_OF_EQUATION), np.random.default_rng((seed, equation.number))
    clean = solve_equation(equation, t)
    noisy = clean[0] * (1 + noise * draw.standard_normal(clean[0].shape))
    taken = np.sort(draw.choice(len(t), len(t) // 2, replace=False)) if rows == "half" else np.arange(len(t))
    return t, clean, Dataset.from_arrays(t[taken], noisy[taken], states=equation.states)


def r_squared(true: np.ndarray, found: np.ndarray | None) -> float:
    """Computes the share of explained variance, averaged over states; minus infinity without a simulation."""
    if found is None:
        return -np.inf
    total = np.maximum(((true - true.mean(0)) ** 2).sum(0), 1e-300)
    return float((1 - ((true - found) ** 2).sum(0) / total).mean())


def has_true_terms(equation: Equation, found: FoundSystem) -> bool | None:
    """Whether each rate has exactly the true terms, with any constants; None if SymPy is not installed."""
    if importlib.util.find_spec("sympy") is None:
        return None
    return all(has_same_terms(text, found.shown[name], equation.states) for name, text in equation.equations.texts)


def has_same_terms(one: str, other: str, names: Sequence[str]) -> bool:
    """Whether two right-hand sides differ only by constants after simplification.

    The monomials of both are compared after reduction to a single fraction without common factors, so that the
    denominators `1 + x**2` and `0.998 + x**2` are equal. Logarithms and exponentials of products and sums are expanded,
    and `cos(x)**2` is `1 - sin(x)**2`.

    **Arguments:** `one`, `other`: right-hand sides in the grammar of equations. `names`: the names of the states.
    """
    return monomials_of(one, names) == monomials_of(other, names)


def monomials_of(text: str, names: Sequence[str]) -> "tuple[frozenset[Expr], frozenset[Expr]]":
    """Returns the monomials of a right-hand side's numerator and denominator."""
    import sympy

    def monomials(part: "Expr") -> "frozenset[Expr]":
        return frozenset(term.as_coeff_Mul()[1] for term in sympy.Add.make_args(sympy.expand(part)))

    def sigmoid(x: "Expr") -> "Expr":
        return 1 / (1 + sympy.exp(-x))

    known = {name: sympy.Symbol(name, real=True) for name in names} | {"sigmoid": sigmoid}
    tree = sympy.expand(sympy.parse_expr(text.replace("^", "**"), local_dict=known), force=True)
    tree = with_generators(tree.replace(is_power_of_cosine, to_sines))
    above, below = sympy.fraction(sympy.cancel(sympy.nsimplify(tree, rational=True)))
    return monomials(above), monomials(below)


def is_power_of_cosine(node: "Expr") -> bool:
    import sympy

    return bool(node.is_Pow and isinstance(node.base, sympy.cos) and node.exp.is_Integer and node.exp > 1)


def to_sines(power: "Expr") -> "Expr":
    import sympy

    half, rest = divmod(int(power.exp), 2)
    return sympy.expand((1 - sympy.sin(power.base.args[0]) ** 2) ** half * power.base**rest)


def with_generators(tree: "Expr") -> "Expr":
    """Replaces each function and fractional power by a symbol that identifies it except for its constants."""
    import sympy

    symbols: dict[Expr, Symbol] = {}

    def generator(node: "Expr") -> "Expr":
        if node.is_number:
            return node.evalf()
        argument = node.args[0]
        if isinstance(node, sympy.exp):
            constant, rest = argument.as_coeff_Mul()
            if constant < 0:
                return 1 / generator(sympy.exp(-argument))
            shape = f"exp({rest})"
        else:
            shape = str(node.replace(lambda symbol: symbol.is_Float, lambda _: sympy.Symbol("constant")))
        if node not in symbols:
            alike = sum(symbol.name.startswith(f"{shape} ") for symbol in symbols.values())
            symbols[node] = sympy.Symbol(f"{shape} {alike}")
        return symbols[node]

    return tree.replace(lambda node: node.is_Function or (node.is_Pow and not node.exp.is_Integer), generator)


def summary_lines(outcomes: Sequence[Reached], noise: float, rows: Rows) -> list[str]:
    """Formats node_fit's shares and the published ones."""
    many = len(outcomes)
    same, other = (sum(value > GOOD_R2_SHARE for value in pair) for pair in zip(*[outcome[:2] for outcome in outcomes]))  # noqa: B905
    counted = [outcome.true_terms for outcome in outcomes if outcome.true_terms is not None]
    exact = f"{sum(counted)} of {len(counted)}" if counted else 'not counted (pip install "node_fit[discover]")'
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
        f"Exactly the true terms: {exact}. Median {np.median([outcome.seconds for outcome in outcomes]):.1f} s."
    )
    return lines


if __name__ == "__main__":
    main()
