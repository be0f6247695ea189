"""Simulation of a system over one period with Rosenbrock steps that end at events, jumps and measurements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..expressions.evaluation import as_float, evaluate, stack_scalars
from ..expressions.operations import Value
from ..expressions.tree import Application, Expression, Number
from ..solver.rosenbrock import ROSENBROCK_ERROR_ORDER, rosenbrock_step
from .system import Change, Constants, ReactionSystem

MAX_EVENTS_AT_ONCE = 100
SAFETY, MIN_GROWTH, MAX_GROWTH = 0.9, 0.2, 6.0
# Error allowed in every state of a large system, in float spacings of the largest state.
ROUNDING_OF_LARGEST = 4.0


@dataclass(frozen=True)
class Tolerances:
    """Tolerances of the simulation.

    - `rtol`, `atol`: relative and absolute tolerance of a step.
    - `steady`: largest relative change, at the current rates over the elapsed time, of a steady state.
    - `max_steps`: maximum number of steps per period.
    """

    rtol: float = 1e-8
    atol: float = 1e-14
    steady: float = 1e-9
    max_steps: int = 20_000


DEFAULT_TOLERANCES = Tolerances()


class Memory(NamedTuple):
    """State of the events: triggers that hold, times of pending assignments, and their values."""

    holds: Bool[Array, " event"]
    pending: Float[Array, " event"]
    values: tuple[Float[Array, "_"], ...]


# The state, the memory and the number of events executed at one time.
Settling = tuple[Float[Array, " state"], Memory, int | Int[Array, ""]]


class Progress(NamedTuple):
    """The state of a running simulation.

    - `modes`: the outcomes of comparisons in the rates, which are constant within a step.
    - `lower`, `upper`: step sizes that bracket the event being located.
    """

    time: Float[Array, ""]
    state: Float[Array, " state"]
    modes: Bool[Array, " comparison"]
    step: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    memory: Memory
    row: Int[Array, ""]
    rows: Float[Array, "row state"]
    is_steady: Bool[Array, ""]
    steps: Int[Array, ""]


class StepOutcome(NamedTuple):
    """The outcome of a step.

    - `reaches`: whether it ends at its goal. `is_good`: whether its error is small enough. `is_taken`: whether it was
      taken, and not shortened to look for an event.
    - `switched`: which triggers and comparisons have changed at its end.
    """

    reaches: Bool[Array, ""]
    is_good: Bool[Array, ""]
    is_taken: Bool[Array, ""]
    switched: Bool[Array, " watched"]


class Period(NamedTuple):
    """The times of a period.

    - `begin`, `end`: if `end` is infinite, the period lasts until the state is steady.
    - `stops`: increasing times at which states are recorded; infinite ones are padding.
    """

    begin: Float[Array, ""]
    end: Float[Array, ""]
    stops: Float[Array, " row"]


def first_memory(system: ReactionSystem) -> Memory:
    """Returns the memory of the events before the start."""
    events = system.model.events
    return Memory(
        jnp.array([event.initial for event in events], bool),
        jnp.full(len(events), jnp.inf),
        tuple(jnp.zeros(len(event.assignments)) for event in events),
    )


def level(trigger: Expression) -> Expression:
    """Returns a formula that is positive while a trigger holds, and negative otherwise."""
    if not isinstance(trigger, Application):
        return Number(1.0 if trigger == Number(True) else -1.0)
    inside = trigger.arguments
    match trigger.function:
        case ">" | ">=":
            return Application("-", inside)
        case "<" | "<=":
            return Application("-", inside[::-1])
        case "==":
            return Application("negative", (Application("abs", (Application("-", inside),)),))
        case "!=":
            return Application("abs", (Application("-", inside),))
        case "and":
            return Application("minimum", tuple(level(argument) for argument in inside))
        case "or":
            return Application("maximum", tuple(level(argument) for argument in inside))
        case "not":
            return Application("negative", (level(inside[0]),))
        case _:
            return Number(1.0)


@dataclass(frozen=True)
class Simulation:
    """A system with its constants, ready to be simulated."""

    system: ReactionSystem
    constants: Constants
    tolerances: Tolerances

    def rates(self, time: Value, state: Float[Array, " state"], modes: Bool[Array, " comparison"]) -> Array:
        return self.system.rates(time, state, self.constants, modes)

    def triggers(self, time: Value, state: Float[Array, " state"]) -> Bool[Array, " event"]:
        scope = self.system.scope(time, state, self.constants)
        return stack_outcomes([evaluate(event.trigger, scope) for event in self.system.model.events])

    def modes(self, time: Float[Array, ""], state: Float[Array, " state"]) -> Bool[Array, " comparison"]:
        """Computes the outcomes of comparisons just after a time."""
        still = jax.lax.stop_gradient(time)
        # The number after zero is subnormal, and XLA rounds it to zero in some programs and not in others.
        later = jnp.where(still == 0, jnp.finfo(still.dtype).tiny, jnp.nextafter(still, jnp.inf))
        scope = self.system.scope(later, state, self.constants)
        return stack_outcomes([evaluate(formula, scope) for formula in self.system.comparisons])

    @property
    def watches(self) -> bool:
        return bool(self.system.model.events or self.system.comparisons)

    # Events

    def rise(self, time: Value, state: Float[Array, " state"], memory: Memory) -> Memory:
        """Updates the memory with triggers that begin or cease to hold."""
        scope = self.system.scope(time, state, self.constants)
        holds = self.triggers(time, state)
        rising = holds & ~memory.holds
        pending: list[Array] = []
        values: list[Array] = []
        for at, event in enumerate(self.system.model.events):
            kept = memory.pending[at] if event.is_persistent else jnp.where(holds[at], memory.pending[at], jnp.inf)
            due = as_float(time) + as_float(evaluate(event.delay, scope))
            pending.append(jnp.where(rising[at], due, kept))
            new = stack_scalars([evaluate(formula, scope) for formula in event.assignments.values()])
            values.append(jnp.where(rising[at], new, memory.values[at]))
        return Memory(holds, jnp.stack(pending), tuple(values))

    def execute(
        self, time: Value, state: Float[Array, " state"], memory: Memory
    ) -> tuple[Float[Array, " state"], Memory]:
        """Executes the due event with the highest priority."""
        events = self.system.model.events
        scope = self.system.scope(time, state, self.constants)
        priorities = stack_scalars([evaluate(event.priority, scope) for event in events])
        due = memory.pending <= time
        chosen = jnp.argmax(jnp.where(due, priorities, -jnp.inf))
        new = state
        for at, event in enumerate(events):
            values = [
                memory.values[at][place] if event.from_trigger_time else evaluate(formula, scope)
                for place, formula in enumerate(event.assignments.values())
            ]
            changes = {name: Change(True, value) for name, value in zip(event.assignments, values, strict=True)}
            after = self.system.change(state, scope, changes, keeps_concentrations=False)
            new = jnp.where(chosen == at, after, new)
        return new, memory._replace(pending=memory.pending.at[chosen].set(jnp.inf))

    def settle(
        self, time: Value, state: Float[Array, " state"], memory: Memory
    ) -> tuple[Float[Array, " state"], Memory]:
        """Executes all events that are due at a time."""
        if not self.system.model.events:
            return state, memory

        def next_event(carry: Settling) -> Settling:
            state, memory, count = carry
            state, memory = self.execute(time, state, memory)
            return state, self.rise(time, state, memory), count + 1

        def is_due(carry: Settling) -> Bool[Array, ""]:
            return jnp.any(carry[1].pending <= time) & (carry[2] < MAX_EVENTS_AT_ONCE)

        first = (state, self.rise(time, state, memory), 0)
        state, memory, count = jax.lax.while_loop(is_due, next_event, first)
        return jnp.where(count < MAX_EVENTS_AT_ONCE, state, jnp.nan), memory

    def slip(
        self,
        time: Float[Array, ""],
        state: Float[Array, " state"],
        flow: Float[Array, " state"],
        switched: Bool[Array, " watched"],
    ) -> Float[Array, ""]:
        """Returns zero, with the derivative of an event time with respect to everything the state depends on."""
        watched = (*(event.trigger for event in self.system.model.events), *self.system.comparisons)

        def level_at(time: Float[Array, ""], state: Float[Array, " state"]) -> Float[Array, ""]:
            scope = self.system.scope(time, state, self.constants)
            return stack_scalars([evaluate(level(formula), scope) for formula in watched])[jnp.argmax(switched)]

        still = jax.lax.stop_gradient((time, state, flow))
        slope = jax.jvp(level_at, still[:2], (jnp.ones_like(time), still[2]))[1]
        value, slope = level_at(time, state), jax.lax.stop_gradient(slope)
        return -(value - jax.lax.stop_gradient(value)) / jnp.where(slope == 0, jnp.inf, slope)

    # Steps

    def flow(self, time: Value, state: Float[Array, " state"], modes: Bool[Array, " comparison"]) -> Array:
        """Computes the time derivatives of the full state."""
        return jnp.concatenate([self.rates(time, state, modes), jnp.zeros(len(self.system.held_quantities))])

    def first_step(self, time: Float[Array, ""], state: Float[Array, " state"]) -> Float[Array, ""]:
        """Chooses a first step (Hairer, Nørsett and Wanner: Solving Ordinary Differential Equations I, II.4)."""
        count = len(self.system.moving)
        moving, flow = state[:count], self.rates(time, state, self.modes(time, state))
        scale = self.tolerances.atol + self.tolerances.rtol * jnp.abs(moving)
        size, speed = jnp.sqrt(jnp.mean((moving / scale) ** 2)), jnp.sqrt(jnp.mean((flow / scale) ** 2))
        step = jnp.where((size < 1e-5) | (speed < 1e-5), 1e-6, 0.01 * size / jnp.where(speed == 0, 1.0, speed))
        return jax.lax.stop_gradient(jnp.where(jnp.isfinite(step), step, 1e-6))

    def attempt(self, progress: Progress, step: Float[Array, ""]) -> tuple[Float[Array, " state"], Float[Array, ""]]:
        """Returns the state after a step, and its error relative to the tolerance."""
        count = len(self.system.moving)
        if not count:
            return progress.state, jnp.zeros(())
        moving, held = progress.state[:count], progress.state[count:]
        after, error = rosenbrock_step(
            lambda at, moving: self.rates(at, jnp.concatenate([moving, held]), progress.modes),
            progress.time, moving, step, self.system.depends_on_time, self.jacobian_of(progress),
        )  # fmt: skip
        error, old, new = (jax.lax.stop_gradient(array) for array in (error, moving, after))
        scale = self.tolerances.atol + self.tolerances.rtol * jnp.maximum(jnp.abs(old), jnp.abs(new))
        if self.system.is_large:
            # A small state computed from large ones has their rounding error, which no shorter step reduces.
            scale = jnp.maximum(scale, ROUNDING_OF_LARGEST * jnp.finfo(float).eps * jnp.max(jnp.abs(new)))
        size = jnp.sqrt(jnp.mean((error / scale) ** 2))
        return jnp.concatenate([after, held]), jnp.where(jnp.isfinite(size), size, jnp.inf)

    def jacobian_of(self, progress: Progress) -> Callable[[Float[Array, " moving"]], Array] | None:
        """Returns the Jacobian of a large system; None for a small one."""
        if not self.system.is_large:
            return None
        held = progress.state[len(self.system.moving) :]
        return lambda moving: self.system.jacobian(
            progress.time, jnp.concatenate([moving, held]), self.constants, progress.modes
        )

    def goal(self, progress: Progress, period: Period, breaks: Float[Array, " break"]) -> Float[Array, ""]:
        """Returns the next time at which a step must end."""
        later = jnp.where(breaks > progress.time, breaks, jnp.inf)
        stop = jnp.append(period.stops, jnp.inf)[progress.row, None]
        goals = jnp.concatenate([later, progress.memory.pending, stop])
        return jnp.minimum(jnp.min(goals), period.end)

    def wanted_step(self, progress: Progress, remaining: Float[Array, ""], tiny: Float[Array, ""]) -> Float[Array, ""]:
        """Returns the step to try: the midpoint of the bracket around an event, or as long as the error allows."""
        middle = 0.5 * (progress.lower + progress.upper)
        at_jump = (progress.upper >= remaining) & (progress.lower == 0)  # Most events lie at the end of a step anyway.
        middle = jnp.where(at_jump, progress.upper - tiny, middle)
        middle = jnp.where(progress.upper - progress.lower <= tiny, progress.upper, middle)
        return jnp.where(jnp.isfinite(progress.upper), middle, progress.step)

    def advance(
        self, progress: Progress, period: Period, breaks: Float[Array, " break"], waits: bool, until_steady: bool
    ) -> Progress:
        """Takes one step, or one bisection towards an event within a step, and records the state at a stop."""
        moved, outcome = self.move(progress, period, breaks, waits)
        return self.record(moved, period, outcome.is_taken, until_steady)

    def move(
        self,
        progress: Progress,
        period: Period,
        breaks: Float[Array, " break"],
        waits: bool,
        known: StepOutcome | None = None,
    ) -> tuple[Progress, StepOutcome]:
        """Takes one step, or one bisection towards an event within a step.

        **Arguments:** `known`: the earlier outcome of this step, so that rounding can't change it in a repetition.
        """
        time, goal = progress.time, self.goal(progress, period, breaks)
        remaining = goal - time
        size = jnp.minimum(jnp.maximum(jnp.abs(goal), jnp.abs(time)), jnp.abs(time) + progress.step)
        tiny = 8 * jnp.finfo(float).eps * size
        wanted = self.wanted_step(progress, remaining, tiny)
        reaches = wanted >= remaining if known is None else known.reaches
        step = jnp.where(reaches, remaining, jax.lax.stop_gradient(wanted))
        after = jnp.where(reaches, goal, time + step)
        new, error = self.attempt(progress, step)
        is_good = is_taken = error <= 1 if known is None else known.is_good
        lower, upper, memory = jnp.zeros(()), jnp.asarray(jnp.inf), progress.memory
        switched = jnp.zeros(0, bool)
        if self.watches:
            before = jnp.concatenate([memory.holds, progress.modes])
            now = jnp.concatenate([self.triggers(after, new), self.modes(after, new)])
            switched = now != before if known is None else known.switched
            changes = is_good & jnp.any(switched)
            length = jax.lax.stop_gradient(step)
            is_taken = is_good & jnp.where(changes, length - progress.lower <= tiny, jnp.isinf(progress.upper))
            is_taken = is_taken if known is None else known.is_taken
            is_bisecting = is_good & ~is_taken
            lower = jnp.where(is_bisecting, jnp.where(changes, progress.lower, length), 0.0)
            upper = jnp.where(is_bisecting, jnp.where(changes, length, progress.upper), jnp.inf)
            flow = self.flow(after, new, progress.modes)
            slip = jnp.where(changes & is_taken & ~reaches, self.slip(after, new, flow, switched), 0.0)
            new, after = new + flow * slip, after + slip
            state_after_events, memory_after_events = self.settle(after, new, memory)
            happens = is_taken & ~(waits & (after >= period.end))
            new = jnp.where(happens, state_after_events, new)
            memory = jax.tree.map(lambda a, b: jnp.where(happens, a, b), memory_after_events, memory)
        growth = jnp.clip(SAFETY * jnp.maximum(error, 1e-12) ** (-1 / ROSENBROCK_ERROR_ORDER), MIN_GROWTH, MAX_GROWTH)
        # A step cut short by a stop or a located event is no guide to the length of the next one.
        is_cut = is_good & (reaches | jnp.isfinite(progress.upper))
        proposed = jnp.where(is_cut, jnp.maximum(step * growth, progress.step), step * growth)
        next_step = jnp.where(is_good & ~is_taken, progress.step, jax.lax.stop_gradient(proposed))
        state, time = jnp.where(is_taken, new, progress.state), jnp.where(is_taken, after, time)
        moved = progress._replace(
            time=time, state=state, modes=self.modes(time, state), step=next_step, lower=lower, upper=upper,
            memory=memory, steps=progress.steps + 1,
        )  # fmt: skip
        return moved, StepOutcome(reaches, is_good, is_taken, switched)

    def record(self, progress: Progress, period: Period, is_taken: Bool[Array, ""], until_steady: bool) -> Progress:
        """Records a state at a stop, and checks whether it is steady."""
        if until_steady:
            progress = progress._replace(is_steady=is_taken & self.is_steady(progress, period))
        count = period.stops.shape[0]
        if not count:
            return progress
        is_stop = is_taken & (progress.time == jnp.append(period.stops, jnp.nan)[progress.row])
        place = jnp.minimum(progress.row, count - 1)
        rows = progress.rows.at[place].set(jnp.where(is_stop, progress.state, progress.rows[place]))
        return progress._replace(row=progress.row + is_stop, rows=rows)

    def is_steady(self, progress: Progress, period: Period) -> Bool[Array, ""]:
        """Whether the current rates, over the elapsed time, change no state by more than the tolerance."""
        count = len(self.system.moving)
        if not count:
            return jnp.asarray(True)
        moving, flow = progress.state[:count], self.rates(progress.time, progress.state, progress.modes)
        scale = jnp.abs(moving) + 1e-3 * jnp.max(jnp.abs(moving)) + self.tolerances.atol
        is_still = jnp.abs(flow) * (progress.time - period.begin) <= self.tolerances.steady * scale
        return jnp.all(is_still) & ~jnp.any(jnp.isfinite(progress.memory.pending))

    def run(
        self, period: Period, state: Float[Array, " state"], memory: Memory, waits: bool, until_steady: bool = False
    ) -> tuple[Float[Array, " state"], Float[Array, "row state"], Memory]:
        """Simulates a period.

        **Arguments:**

        - `state`, `memory`: values at its beginning, after the changes of its condition.
        - `waits`: whether events at its end wait for the changes that begin the next period.
        - `until_steady`: whether it ends when the state is steady.

        **Returns:** the state at the end, the states at the stops, and the memory of the events. Values that could not
        be simulated are NaN.
        """
        breaks = self.system.break_times(state, self.constants)

        def step(progress: Progress) -> Progress:
            return self.advance(progress, period, breaks, waits, until_steady)

        last = jax.lax.while_loop(
            lambda progress: self.goes_on(progress, period, until_steady), step, self.begin(period, state, memory)
        )
        return self.end_of(last, period, until_steady), last.rows, last.memory

    def begin(self, period: Period, state: Float[Array, " state"], memory: Memory) -> Progress:
        """Returns the initial progress of a period, after the events at its first time."""
        state, memory = self.settle(period.begin, state, memory)
        rows = jnp.full((period.stops.shape[0], state.size), jnp.nan)
        rows = jnp.where((period.stops == period.begin)[:, None], state, rows)
        return Progress(
            period.begin, state, self.modes(period.begin, state), self.first_step(period.begin, state), jnp.zeros(()),
            jnp.asarray(jnp.inf), memory, jnp.sum(period.stops <= period.begin), rows, jnp.asarray(False),
            jnp.asarray(0),
        )  # fmt: skip

    def goes_on(self, progress: Progress, period: Period, until_steady: bool) -> Bool[Array, ""]:
        """Whether the simulation needs more steps."""
        is_over = progress.is_steady if until_steady else progress.time >= period.end
        is_stuck = progress.step <= 1e-14 * jnp.abs(progress.time)
        return ~is_over & ~is_stuck & (progress.steps < self.tolerances.max_steps)

    def end_of(self, last: Progress, period: Period, until_steady: bool) -> Float[Array, " state"]:
        """Returns the state at the end of a period; NaN if it was not reached."""
        is_done = last.is_steady if until_steady else last.time >= period.end
        return jnp.where(is_done, last.state, jnp.nan)


def stack_outcomes(outcomes: Sequence[Value]) -> Bool[Array, " outcome"]:
    """Stacks outcomes of conditions into one vector."""
    return jnp.stack([jnp.asarray(outcome, bool) for outcome in outcomes]) if outcomes else jnp.zeros(0, bool)
