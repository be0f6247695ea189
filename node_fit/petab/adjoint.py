"""Reverse-mode derivatives of a simulated period: one reverse sweep over the accepted steps.

Forward sensitivities cost one simulation per parameter. Here the simulation stores the beginning of every step; the
sweep repeats each step and pulls the derivatives of all later steps back through it. Step lengths do not depend on the
state, so the derivatives equal those of forward sensitivities up to rounding. (The discrete adjoint:
Hager, 2000, Runge-Kutta methods in optimal control and the transformed adjoint system. Numer. Math. 87, 247.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..expressions.evaluation import as_float
from .simulation import Memory, Period, Progress, Simulation, StepOutcome, Tolerances, first_memory
from .system import ReactionSystem

# Maximum number of stored steps, including rejected ones; with more, derivatives are NaN.
MAX_KEPT = 2_000


class PeriodInputs(NamedTuple):
    """The differentiable inputs of a period."""

    constants: Mapping[str, Float[Array, ""]]
    period: Period
    state: Float[Array, " state"]
    breaks: Float[Array, " break"]


class KeptSteps(NamedTuple):
    """A simulated period: its last progress, the beginning and the outcome of every step, and their number."""

    last: Progress
    began: Progress
    outcomes: StepOutcome
    length: Int[Array, ""]


# The next step, and the derivatives with respect to the inputs, the time and the state after the step.
Slopes = tuple[Int[Array, ""], PeriodInputs, Float[Array, ""], Float[Array, " state"]]


def run_reversibly(
    simulation: Simulation,
    period: Period,
    state: Float[Array, " state"],
    memory: Memory,
    waits: bool,
    until_steady: bool = False,
) -> tuple[Float[Array, " state"], Float[Array, "row state"], Memory]:
    """Runs `Simulation.run` for a system without events, differentiable in reverse mode only."""
    system = simulation.system
    constants = {name: as_float(value) for name, value in simulation.constants.items()}
    inputs = PeriodInputs(constants, period, state, system.break_times(state, constants))
    end, rows = ReversiblePeriod(system, simulation.tolerances, waits, until_steady).run(inputs)
    return end, rows, memory


@dataclass(frozen=True)
class ReversiblePeriod:
    """A period simulated for a reverse sweep; its fields are those of `Simulation` and arguments of its `run`."""

    system: ReactionSystem
    tolerances: Tolerances
    waits: bool
    until_steady: bool

    def run(self, given: PeriodInputs) -> tuple[Float[Array, " state"], Float[Array, "row state"]]:
        """Returns the state at the end, and the states at the stops."""

        @jax.custom_vjp
        def run(given: PeriodInputs) -> tuple[Array, Array]:
            return self.forward(given)[0]

        run.defvjp(self.forward, self.backward)
        return run(jax.tree.map(as_float, given))

    def simulation(self, given: PeriodInputs) -> Simulation:
        return Simulation(self.system, given.constants, self.tolerances)

    def forward(self, given: PeriodInputs) -> tuple[tuple[Array, Array], tuple[PeriodInputs, KeptSteps]]:
        @jax.custom_batching.custom_vmap
        def keep(given: PeriodInputs) -> KeptSteps:
            return jax.tree.map(lambda x: x[0], self.keep_steps(jax.tree.map(lambda x: x[None], given)))

        @keep.def_vmap
        def keep_batch(size: int, is_batched: PyTree, given: PeriodInputs) -> tuple[KeptSteps, PyTree]:
            def widen(value: Array, has_axis: bool) -> Array:
                return value if has_axis else jnp.broadcast_to(value, (size, *value.shape))

            kept = self.keep_steps(jax.tree.map(widen, given, *is_batched))
            return kept, jax.tree.map(lambda _: True, kept)

        kept = keep(given)
        end = self.simulation(given).end_of(kept.last, given.period, self.until_steady)
        return (end, kept.last.rows), (given, kept)

    def keep_steps(self, given: PeriodInputs) -> KeptSteps:
        """Simulates a batch, and stores all steps.

        The batch has an explicit loop; a loop batched by JAX would copy all stored steps in every iteration.
        """

        def begin(given: PeriodInputs) -> Progress:
            return self.simulation(given).begin(given.period, given.state, first_memory(self.system))

        def goes_on(given: PeriodInputs, progress: Progress) -> Bool[Array, ""]:
            return self.simulation(given).goes_on(progress, given.period, self.until_steady)

        def step(given: PeriodInputs, progress: Progress) -> tuple[Progress, tuple[Progress, StepOutcome]]:
            own, wanted = self.simulation(given), goes_on(given, progress)
            moved, outcome = own.move(progress, given.period, given.breaks, self.waits)
            after = own.record(moved, given.period, outcome.is_taken, self.until_steady)
            outcome = outcome._replace(is_taken=wanted & outcome.is_taken)
            after = jax.tree.map(lambda new, old: jnp.where(wanted, new, old), after, progress)
            return after, (without_rows(progress), outcome)

        def body(
            carry: tuple[Progress, tuple[Progress, StepOutcome], Int[Array, ""]],
        ) -> tuple[Progress, PyTree, Array]:
            progress, steps, at = carry
            progress, own = jax.vmap(step)(given, progress)
            return progress, jax.tree.map(lambda x, now: x.at[at].set(now), steps, own), at + 1

        first = jax.vmap(begin)(given)
        shapes = jax.eval_shape(lambda: jax.vmap(step)(given, first)[1])
        empty = jax.tree.map(lambda x: jnp.zeros((MAX_KEPT, *x.shape), x.dtype), shapes)
        last, steps, count = jax.lax.while_loop(
            lambda carry: jnp.any(jax.vmap(goes_on)(given, carry[0])) & (carry[2] < MAX_KEPT),
            body,
            (first, empty, jnp.asarray(0)),
        )
        began, outcomes = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)
        return KeptSteps(last, began, outcomes, jnp.full(given.state.shape[0], count))

    def backward(self, residuals: tuple[PeriodInputs, KeptSteps], slopes: tuple[Array, Array]) -> tuple[PeriodInputs]:
        given, kept = residuals
        by_end, by_rows = slopes

        def back(carry: Slopes) -> Slopes:
            at, total, by_time, by_state = carry
            began, outcome = jax.tree.map(lambda x: x[at], (kept.began, kept.outcomes))

            def take(given: PeriodInputs, time: Array, state: Array) -> tuple[Array, Array]:
                here = began._replace(time=time, state=state)
                moved, _ = self.simulation(given).move(here, given.period, given.breaks, self.waits, outcome)
                return moved.time, moved.state

            after, pull = jax.vjp(take, given, began.time, began.state)
            by_given, by_time_before, by_state_before = pull(
                (by_time, by_state + slope_at_stop(given.period, began.row, after[0], by_rows))
            )
            now = jax.tree.map(jnp.add, total, by_given), by_time_before, by_state_before
            chosen = jax.tree.map(
                lambda new, old: jnp.where(outcome.is_taken, new, old), now, (total, by_time, by_state)
            )
            return at - 1, *chosen

        start = kept.length - 1, jax.tree.map(jnp.zeros_like, given), jnp.zeros(()), by_end
        _, total, by_time, by_state = jax.lax.while_loop(lambda carry: carry[0] >= 0, back, start)
        at_begin = (given.period.stops == given.period.begin)[:, None]
        by_state = by_state + jnp.sum(jnp.where(at_begin, by_rows, 0.0), axis=0)
        fits = jnp.where(kept.length < MAX_KEPT, 1.0, jnp.nan)
        total = total._replace(
            period=total.period._replace(begin=total.period.begin + by_time), state=total.state + by_state
        )
        return (jax.tree.map(lambda x: x * fits, total),)


def without_rows(progress: Progress) -> Progress:
    """Drops the recorded states, which are large and do not affect a step."""
    return progress._replace(rows=progress.rows[..., :0, :])


def slope_at_stop(
    period: Period, row: Int[Array, ""], time: Float[Array, ""], by_rows: Float[Array, "row state"]
) -> Float[Array, " state"] | PyTree:
    """Returns the derivative with respect to the state recorded at the end of a step; zero if none was recorded."""
    if not period.stops.shape[0]:
        return jnp.zeros(by_rows.shape[1])
    is_stop = time == jnp.append(period.stops, jnp.nan)[row]
    return jnp.where(is_stop, by_rows[jnp.minimum(row, period.stops.shape[0] - 1)], 0.0)
