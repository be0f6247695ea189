"""Steps of a march at once beside the same steps one after the other: iterations, states and gradients.

    python scripts/accuracy/parallel_march.py [--only records odebench size stiffness chaos]

prints tables in Markdown. Each problem is marched both ways from the same start, over steps that meet a tolerance of
1e-5 where there is a choice; the parallel march begins at the states with noise of 10 % of their spread, as if they had
been measured, or at the start alone. `iterations` are those of Newton's method, `in turn` the steps that it did not
settle, `states` and `gradient` the largest differences relative to the largest value.

- `records`: shipped records, their models after 100 training steps. `odebench`: its equations, worst and median.
- `size`: van der Pol's oscillator over 1 to 10,000 steps. `stiffness`: a linear decay from slow to a step's limit.
- `chaos`: Lorenz's system over 20 Lyapunov times, and a field that runs away.
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import node_fit as nf
from node_fit.benchmark.protocols import LAST_SOLVED_TIME, Equation, read_equations, solve_equation
from node_fit.solver import recurrence
from node_fit.solver.held_steps import settle
from node_fit.solver.problem import InitialValueProblem

SECTIONS = ("records", "odebench", "size", "stiffness", "chaos")
ROOT = Path(__file__).parents[2]
RECORDS = {
    "oscillator": ("t", ["x", "y"], "trajectory"),
    "spiral": ("t", ["x", "y"], "trajectory"),
    "lynx_hare": ("year", ["hare", "lynx"], None),
}
RTOL, ATOL, NOISE = 1e-5, 1e-7, 0.1
ODEBENCH_STEPS = 100
Rates = Callable[[Any, jax.Array, jax.Array], jax.Array]
counts: list[tuple[int, int]] = []


class Row(NamedTuple):
    """What two marches of a problem differ in."""

    steps: int
    iterations: int
    in_turn: int
    states: float
    gradient: float

    def __str__(self) -> str:
        return f"{self.steps:,} | {self.iterations} | {self.in_turn:,} | {self.states:.0e} | {self.gradient:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    given = parser.parse_args()
    watch_iterations()
    print("| problem | | guess | steps | iterations | in turn | states | gradient |")
    print("|---|---|---|---|---|---|---|---|")
    sections = {"records": records, "odebench": odebench, "size": sizes, "stiffness": stiffness, "chaos": chaos}
    for name in given.only:
        sections[name]()


def watch_iterations() -> None:
    """Notes the iterations of each march, and the first step that they have not settled."""
    inner = recurrence.iterate

    def watched(residuals: Any, guess: jax.Array) -> Any:
        found = inner(residuals, guess)
        first = recurrence.first_unsettled(found.settled)
        jax.debug.callback(lambda number, first: counts.append((int(number), int(first))), found.number, first)
        return found

    recurrence.iterate = watched


def compare(rates: Rates, parameters: jax.Array, y0: np.ndarray, end: float, precision: str, **given: Any) -> list[Row]:
    """Rows for a guess of noisy measurements, and for none.

    **Arguments:** `rates`: called with parameters, the time and states `(state,)`. `given`: `steps`, or as
    many as meet the tolerance; `bound` of the states.
    """
    with jax.enable_x64(precision == "x64"):
        dtype = jnp.float64 if precision == "x64" else jnp.float32
        start, theta = jnp.asarray(y0, dtype), jnp.asarray(parameters, dtype)
        nodes = settled(rates, theta, start, end, given.get("steps"), dtype)
        rows = jnp.tile(nodes, (len(start), 1))

        def march(theta: jax.Array, way: Any, guess: jax.Array) -> jax.Array:
            bound = jnp.full(start.shape[1], given.get("bound", 1e6), dtype)
            field = lambda t, y, u: rates(theta, t, y)  # noqa: E731
            none = jnp.zeros((*rows.shape, 0), dtype)
            problem = InitialValueProblem(field, rows, start, none, rows[:, 0], bound, None, guess)
            return nf.Solver(rtol=RTOL, atol=ATOL, march=way).solve_held(problem, rows).ys

        def value(theta: jax.Array, way: Any, guess: jax.Array) -> tuple[jax.Array, jax.Array]:
            ys = march(theta, way, guess)
            return jnp.mean(jnp.where(jnp.isfinite(ys), ys, 0) ** 2), ys

        run = eqx.filter_jit(jax.grad(value, has_aux=True))
        begun = jnp.broadcast_to(start[:, None], (*rows.shape, start.shape[1]))
        slope, truth = run(theta, "sequential", begun)
        finite = jnp.where(jnp.isfinite(truth), truth, 0)
        noise = NOISE * finite.std(axis=(0, 1)) * jax.random.normal(jax.random.key(0), truth.shape, dtype)
        found: list[Row] = []
        for guess in (finite + noise, begun):
            counts.clear()
            own_slope, ys = jax.block_until_ready(run(theta, "parallel", guess))
            jax.effects_barrier()
            found.append(row_of(len(nodes) - 1, (ys, own_slope), (truth, slope)))
        return found


def row_of(steps: int, own: Sequence[jax.Array], exact: Sequence[jax.Array]) -> Row:
    """States and gradients of a parallel march beside those of the sequential one."""
    (ys, own_slope), (truth, slope) = own, exact
    iterations, first = max(number for number, _ in counts), min(first for _, first in counts)
    finite = jnp.isfinite(truth)
    states = difference(jnp.where(finite, ys, 0), jnp.where(finite, truth, 0))
    if bool((jnp.isfinite(ys) != finite).any()):
        states = float("nan")
    return Row(steps, iterations, steps - first, states, difference(own_slope, slope))


def difference(one: jax.Array, other: jax.Array) -> float:
    return float(jnp.abs(one - other).max() / jnp.maximum(jnp.abs(other).max(), 1e-30))


def settled(rates: Rates, theta: jax.Array, start: jax.Array, end: float, steps: int | None, dtype: Any) -> jax.Array:
    """Nodes of equal steps, or of steps that meet the tolerance."""
    if steps is not None:
        return jnp.linspace(0, end, steps + 1, dtype=dtype)
    solver = nf.Solver(rtol=RTOL, atol=ATOL)

    def errors(shares: Any) -> np.ndarray:
        rows = jnp.tile(jnp.asarray(shares[0] * end, dtype), (len(start), 1))
        none = jnp.zeros((*rows.shape, 0), dtype)
        problem = InitialValueProblem(lambda t, y, u: rates(theta, t, y), rows, start, none, rows[:, 0])
        return np.asarray(solver.step_errors(problem, rows).max(axis=0))[None]

    shares = settle(errors, np.linspace(0, 1, 17)[None], solver.error_order, 4096)
    return jnp.asarray(shares[0] * end, dtype)


def show(name: str, precision: str, rows: Sequence[Row]) -> None:
    for guess, row in zip(("data", "start"), rows, strict=True):
        print(f"| {name} | {precision} | {guess} | {row} |", flush=True)


def records() -> None:
    for name, (time, states, trajectory) in RECORDS.items():
        data = nf.read_table(ROOT / "data" / f"{name}.csv", time=time, states=states, trajectory=trajectory)
        options = nf.Options(recipe="direct", training=nf.Training(steps=100), discover=False)
        model = nf.fit(data, options=options, progress=False).model
        assert isinstance(model, nf.NeuralODE)
        arrays, rest = eqx.partition(model.field, eqx.is_inexact_array)
        flat, build = ravel_pytree(arrays)
        batch = jax.tree.map(jnp.asarray, model.batch(data))
        rates = lambda theta, t, y, b=build, r=rest: eqx.combine(b(theta), r)(t, y, jnp.zeros(0))  # noqa: E731
        end = float(batch.ts.max())
        show(f"{name}, fitted", "x32", compare(rates, flat, np.asarray(model.first_states(batch)), end, "x32"))


def odebench() -> None:
    times = np.linspace(0, LAST_SOLVED_TIME, 50)
    for precision in ("x32", "x64"):
        found: list[list[Row]] = []
        for equation in read_equations():
            scale = np.maximum(np.abs(np.concatenate(solve_equation(equation, times))).max(axis=0), 1e-6)
            jax.clear_caches()  # Programs of so many fields would exceed the limit on memory mappings.
            # In units in which states are of order one, as a fit has them.
            rates = functools.partial(scaled_rates, equation, scale)
            starts = np.array(equation.starts) / scale
            found.append(compare(rates, jnp.ones(1), starts, LAST_SOLVED_TIME, precision, steps=ODEBENCH_STEPS))
        for index, guess in enumerate(("data", "start")):
            rows = np.array([pair[index] for pair in found])
            for words, pick in (("median", np.median), ("worst", np.max)):
                steps, iterations, in_turn, *differences = pick(rows, axis=0)
                row = Row(int(steps), int(iterations), int(in_turn), *differences)
                print(f"| ODEBench, {len(rows)} fields, {words} | {precision} | {guess} | {row} |", flush=True)
            taken = (rows[:, 2] > 0).sum()
            print(f"| ODEBench, fields with steps in turn: {taken} | {precision} | {guess} | | | | | |", flush=True)


def scaled_rates(equation: Equation, scale: np.ndarray, theta: jax.Array, t: Any, y: jax.Array) -> jax.Array:
    values = dict(zip(equation.states, y * jnp.asarray(scale, y.dtype), strict=True))
    rates = jnp.stack(list(equation.equations(values).values()))
    return theta * rates / jnp.asarray(scale, y.dtype)


def van_der_pol(theta: jax.Array, t: Any, y: jax.Array) -> jax.Array:
    return jnp.stack([y[1], theta[0] * (1 - y[0] ** 2) * y[1] - y[0]])


def sizes() -> None:
    start = np.random.default_rng(0).normal(size=(4, 2))
    for precision in ("x32", "x64"):
        for steps in (1, 10, 100, 1000, 10_000):
            rows = compare(van_der_pol, jnp.array([1.0]), start, 0.05 * steps, precision, steps=steps)
            show("van der Pol", precision, rows)


def stiffness() -> None:
    decay = lambda theta, t, y: -theta * (y - jnp.cos(t))  # noqa: E731
    for rate in (1.0, 10.0, 30.0, 33.0):
        rows = compare(decay, jnp.array([rate]), np.array([[0.0], [2.0]]), 20.0, "x64", steps=200)
        show(f"decay, {rate / 10:g} a step", "x64", rows)


def chaos() -> None:
    def lorenz(theta: jax.Array, t: Any, y: jax.Array) -> jax.Array:
        x, y, z = y
        return jnp.stack([10 * (y - x), x * (theta[0] - 10 * z) - y, 10 * x * y - 8 / 3 * z])

    for times in (5, 20):
        start = np.array([[0.1, 0.1, 2.0], [-0.3, 0.2, 1.5]])  # In tenths.
        rows = compare(lorenz, jnp.array([28.0]), start, times / 0.9, "x64", steps=60 * times)
        show(f"Lorenz, {times} Lyapunov times", "x64", rows)
    rows = compare(
        lambda theta, t, y: theta * y**2, jnp.array([1.0]), np.array([[1.0], [-1.0]]), 4.0, "x64", steps=100, bound=1e3
    )
    show("runs away at a quarter", "x64", rows)


if __name__ == "__main__":
    main()
