"""One experiment of a fitted problem as an ordinary model, which is saved, simulated and exported as any other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.scaling import Scaler
from ..expressions.tree import Application, Expression, Number, Symbol, comparisons, substitute, symbols
from ..expressions.writing import write
from ..model.fields.known import Known
from ..model.initial_state.rule import Stated
from ..model.neural_ode import NeuralODE
from ..model.observation import FormulaReadout, MeasuredStates
from ..model.system import System, as_jax
from ..runtime.placement import numbers_as_arrays, scope
from ..solver.solver import Solver
from .formulas import TIME
from .objective import Objective
from .simulation import level
from .system import Event
from .tables import Condition, Measurement, PEtabError, Problem

# Of simulations, in states that are scaled to order one.
MODEL_RTOL, MODEL_ATOL, MAX_STEPS = 1e-8, 1e-10, 1_000_000
RECORD_POINTS = 50


def make_experiment_models(
    objective: Objective, x: ArrayLike, experiments: Sequence[str]
) -> Iterator[tuple[str, NeuralODE | PEtabError]]:
    """The models of experiments at a point, each with its own start, constants and switches written into it.

    The states are the quantities that move, species as concentrations; channels are the observables, with what replaces
    their placeholders; constants are those of the model, held. `predict(ts=...)` needs no first values.

    **Arguments:** `x`: the estimated parameters on their scales. `experiments`: their names.

    **Returns:** for each experiment a model in double precision, or the error that names what of it has no place in
    such equations.
    """
    point = np.asarray(x, np.float64)
    for name, record in record_states(objective, point, experiments).items():
        try:
            yield name, ExperimentModel(objective, point, name, record).make()
        except PEtabError as error:
            yield name, error
        except ValueError as error:
            yield name, refuse(objective, name, str(error).rstrip("."))


class StateRecord(NamedTuple):
    """A simulated experiment: its times, all states there (of species the amounts), and its constants."""

    times: Float[np.ndarray, " time"]
    states: Float[np.ndarray, "time state"]
    constants: Mapping[str, float]


def record_states(
    objective: Objective, x: Float[np.ndarray, " parameter"], names: Sequence[str]
) -> dict[str, StateRecord]:
    """Experiments simulated from their beginnings, after an equilibrium, to their last measurements."""
    problem = objective.problem
    times = {name: times_of(problem, name) for name in names}
    first = {each.experiment: each for each in reversed(problem.measurements)}
    wanted = [first[name]._replace(time=time, value=1.0) for name in names for time in map(float, times[name])]
    owners = [name for name in names for _ in times[name]]
    experiments = {name: problem.experiments[name] for name in names}
    dense = Objective(replace(problem, measurements=tuple(wanted), experiments=experiments), objective.tolerances)
    states: list[np.ndarray] = [np.zeros(0)] * len(wanted)
    constants: dict[str, dict[str, float]] = {}
    for group, (recorded, shared) in zip(dense.groups, dense.evaluate(x).recorded, strict=True):
        of_experiment = {name: np.asarray(value) for name, value in shared.items()}
        for block in group.blocks:
            places: list[list[int]] = [block.places.tolist(), block.experiment.tolist(), block.row.tolist()]
            for place, at, row in zip(*places, strict=True):
                states[place] = np.asarray(recorded[at, row])
                constants[owners[place]] = {name: float(each[at]) for name, each in of_experiment.items()}
    parts = np.split(np.stack(states), len(names))
    return {name: StateRecord(times[name], part, constants[name]) for name, part in zip(names, parts, strict=True)}


def conditions_of(problem: Problem, experiment: str) -> tuple[Condition, ...]:
    """The conditions of an experiment after its equilibrium, if there is one."""
    return tuple(each for each in problem.experiments[experiment] if each.time != -np.inf)


def times_of(problem: Problem, experiment: str) -> Float[np.ndarray, " time"]:
    """Even times from the beginning of an experiment to its last measurement."""
    begin = conditions_of(problem, experiment)[0].time
    measured = [each.time for each in problem.measurements if each.experiment == experiment]
    last = max((time for time in measured if np.isfinite(time)), default=begin)
    return np.linspace(begin, last if last > begin else begin + 1.0, RECORD_POINTS)


def refuse(objective: Objective, experiment: str, reason: str) -> PEtabError:
    return PEtabError(
        f"experiment {experiment!r} of {objective.problem.name} can't become a model of its own, since {reason}; "
        "simulate it with fit.objective."
    )


@dataclass(frozen=True)
class ExperimentModel:
    """An experiment on its way to a `NeuralODE`."""

    objective: Objective
    x: Float[np.ndarray, " parameter"]
    experiment: str
    record: StateRecord

    def make(self) -> NeuralODE:
        self.check()
        channels = self.channels
        fixed = {name: [value, value, value] for name, value in self.constants.items()}
        used = frozenset(name for formula in self.formulas() for name in symbols(formula))
        of_field = {name: fixed[name] for name in fixed if name in used}
        read = frozenset(name for formula in channels.values() for name in symbols(formula)) & fixed.keys()
        with scope("x64"):
            system = self.system(tuple(channels))
            field = Known(
                system,
                equations={name: write(rate) for name, rate in self.rates.items()},
                constants=of_field,
                triggers=[trigger_of(event, self.written) for event in self.events],
            )
            formulas = {name: write(formula) for name, formula in channels.items() if formula != Symbol(name)}
            data = blank_rows(tuple(channels), self.record.times)
            scaler = Scaler.from_dataset(data, identity=True)
            if not formulas:
                readout = MeasuredStates(system)
                scaler = replace(scaler, state_scale=np.asarray(system.scaler.state_scale)[: len(channels)])
            else:
                readout = FormulaReadout(
                    system,
                    formulas=formulas,
                    constants={name: fixed[name] for name in sorted(read - of_field.keys())},
                    channels=tuple(channels),
                    known=tuple(of_field),
                )
            start = Stated(system, Batch.from_dataset(data, scaler), values=self.start)
            solver = numbers_as_arrays(Solver("kvaerno5", rtol=MODEL_RTOL, atol=MODEL_ATOL, max_steps=MAX_STEPS))
            return NeuralODE(field, start, readout, scaler, solver, system, tuple(channels), ())

    # What is simulated

    @cached_property
    def measurements(self) -> list[Measurement]:
        return [each for each in self.objective.problem.measurements if each.experiment == self.experiment]

    @cached_property
    def first(self) -> dict[str, float]:
        """Where the experiment begins: each state, of species the concentration."""
        times, states, constants = self.record
        with jax.enable_x64(True):
            scope = self.objective.system.scope(jnp.asarray(times[0]), jnp.asarray(states[0]), constants)
            return {name: float(jnp.asarray(scope[name])) for name in self.objective.system.states}

    # What stays what it is

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return self.objective.problem.model.events

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The states: what has a rate, and what events set."""
        set_by_events = dict.fromkeys(name for event in self.events for name in event.assignments)
        return tuple(dict.fromkeys([*self.objective.system.moving, *set_by_events]))

    @cached_property
    def constants(self) -> dict[str, float]:
        """The value of each name that is neither a state nor a rule, and does not change."""
        problem = self.objective.problem
        values = {**self.objective.values(self.x), **self.record.constants, **self.first}
        apart = {*self.moving, *problem.model.rules, *problem.model.reactions, *self.switched, TIME}
        return {name: float(value) for name, value in values.items() if name not in apart}

    @cached_property
    def switched(self) -> dict[str, Expression]:
        """Constants that later conditions change, as functions of the time."""
        found: dict[str, Expression] = {}
        for period in conditions_of(self.objective.problem, self.experiment)[1:]:
            for name, new in period.changes.items():
                if name in self.moving:
                    raise self.refuse(f"a condition sets the state {name!r} at time {period.time:g}")
                old = found.get(name, Number(self.first[name]))
                is_before = Application("<", (Symbol(TIME), Number(float(period.time))))
                found[name] = Application("piecewise", (old, is_before, new))
        return found

    @cached_property
    def rules(self) -> dict[str, Expression]:
        """What all names stand for that are neither states nor constants, with these alone in them."""
        model = self.objective.problem.model
        given = {**model.rules, **model.reactions, **self.switched}
        found: dict[str, Expression] = {}

        def write_out(name: str) -> Expression:
            if name not in found:
                inside = {each: write_out(each) for each in symbols(given[name]) if each in given and each != name}
                found[name] = substitute(given[name], inside)
            return found[name]

        for name in given:
            write_out(name)
        return found

    def written(self, formula: Expression) -> Expression:
        """A formula in states, constants and the time."""
        return substitute(formula, self.rules)

    @cached_property
    def rates(self) -> dict[str, Expression]:
        model = self.objective.problem.model
        rates: dict[str, Expression] = {}
        for name in self.moving:
            rate, container = self.written(model.rates.get(name, Number(0.0))), model.containers.get(name)
            rates[name] = rate if container is None else Application("/", (rate, self.written(Symbol(container))))
        return rates

    @property
    def start(self) -> dict[str, float]:
        return {name: self.first[name] for name in self.moving}

    @cached_property
    def channels(self) -> dict[str, Expression]:
        """The observables; with several replacements of its placeholders, one is a channel for each."""
        found: dict[str, Expression] = {}
        for name, observable in self.objective.problem.observables.items():
            own = [each.overrides for each in self.measurements if each.observable == name]
            given = list(dict.fromkeys(own)) or ([()] if not observable.placeholders else [])
            for at, overrides in enumerate(given, start=1):
                placed = substitute(observable.formula, dict(zip(observable.placeholders, overrides, strict=True)))
                found[name if at == 1 else f"{name}_{at}"] = self.written(placed)
        return found

    def formulas(self) -> Iterator[Expression]:
        """What the field computes."""
        yield from self.rates.values()
        for event in self.events:
            yield from map(self.written, (event.trigger, *event.assignments.values()))

    def system(self, channels: Sequence[str]) -> System:
        """States scaled to their largest values in the experiment."""
        states, system = self.record.states, self.objective.system
        with np.errstate(invalid="ignore"):
            largest = np.nanmax(np.abs(np.where(np.isfinite(states), states, 0.0)), axis=0)
        model, scales = self.objective.problem.model, list[float]()
        for name in self.moving:
            size, container = float(largest[system.states.index(name)]), model.containers.get(name)
            scales.append((size if container is None else size / self.value_of(container)) or 1.0)
        blank = Scaler.from_dataset(blank_rows(channels, self.record.times), identity=True)
        direct = [name for name in channels if name in self.moving]
        hidden = [name for name in self.moving if name not in direct]
        behind = System.behind_formulas(
            blank, channels, hidden, {}, [name for name in channels if name not in direct], (), TIME
        )
        by_name = dict(zip(self.moving, scales, strict=True))
        scale = np.array([by_name[name] for name in behind.states])
        return replace(behind, scaler=as_jax(replace(behind.scaler, state_scale=scale)))

    def value_of(self, container: str) -> float:
        return self.constants.get(container, 1.0)

    # What has no place

    def check(self) -> None:
        """Refuses what equations of states with triggers can't say."""
        model = self.objective.problem.model
        if not self.moving:
            raise self.refuse("nothing in it moves")
        for name in self.moving:
            container = model.containers.get(name)
            if container is not None and container in (*self.moving, *model.rules, *self.switched):
                raise self.refuse(f"the compartment {container!r} of {name!r} changes its size")
        for event in self.events:
            if event.delay != Number(0.0) or event.priority != Number(0.0):
                raise self.refuse(f"its event {event.name!r} has a delay or a priority")
            if not any(comparisons(event.trigger)):
                raise self.refuse(f"the trigger of its event {event.name!r} compares nothing")

    def refuse(self, reason: str) -> PEtabError:
        return refuse(self.objective, self.experiment, reason)


def trigger_of(event: Event, written: Callable[[Expression], Expression]) -> dict[str, object]:
    """An event as `Known` has it: a level that falls through zero, `when`, and the new values, `set`."""
    return {
        "when": write(Application("negative", (written(level(event.trigger)),))),
        "set": {name: write(written(value)) for name, value in event.assignments.items()},
    }


def blank_rows(channels: Sequence[str], times: Float[np.ndarray, " time"]) -> Dataset:
    """A trajectory in which nothing is measured but a zero at its beginning."""
    ys = np.zeros((len(times), len(channels)))
    return Dataset.from_arrays([times], [ys], states=channels, time=TIME)
