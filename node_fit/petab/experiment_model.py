"""Conversion of an experiment of a fitted problem to an ordinary model to save, simulate and export like any other."""

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

# Tolerances of simulations with states scaled to order one.
MODEL_RTOL, MODEL_ATOL, MAX_STEPS = 1e-8, 1e-10, 1_000_000
RECORD_POINTS = 50


def make_experiment_models(
    objective: Objective, x: ArrayLike, experiments: Sequence[str]
) -> Iterator[tuple[str, NeuralODE | PEtabError]]:
    """Yields a model of each experiment at a point, with its initial state, constants and switches built in.

    States are the moving quantities, with species as concentrations. Channels are the observables with their
    placeholder overrides. Constants are those of the model, held. `predict(ts=...)` needs no initial values.

    **Arguments:** `x`: the estimated parameters on their scales. `experiments`: names of experiments.

    **Returns:** for each experiment a model in double precision, or the error that names its part without a place in
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
    """A simulated experiment: its times, its states (species as amounts), and its constants."""

    times: Float[np.ndarray, " time"]
    states: Float[np.ndarray, "time state"]
    constants: Mapping[str, float]


def record_states(
    objective: Objective, x: Float[np.ndarray, " parameter"], names: Sequence[str]
) -> dict[str, StateRecord]:
    """Simulates experiments from their beginnings, after an equilibrium, to their last measurements."""
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
    """Returns the conditions of an experiment, without that of its equilibrium."""
    return tuple(period for period in problem.experiments[experiment] if period.time != -np.inf)


def times_of(problem: Problem, experiment: str) -> Float[np.ndarray, " time"]:
    """Returns evenly spaced times from the beginning of an experiment to its last measurement."""
    begin = conditions_of(problem, experiment)[0].time
    measured = [measurement.time for measurement in problem.measurements if measurement.experiment == experiment]
    last = max((time for time in measured if np.isfinite(time)), default=begin)
    return np.linspace(begin, last if last > begin else begin + 1.0, RECORD_POINTS)


def refuse(objective: Objective, experiment: str, reason: str) -> PEtabError:
    return PEtabError(
        f"experiment {experiment!r} of {objective.problem.name} can't become a model of its own, since {reason}; "
        "simulate it with fit.objective."
    )


@dataclass(frozen=True)
class ExperimentModel:
    """Converts an experiment to a `NeuralODE`."""

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
                triggers=[trigger_of(event, self.rewrite) for event in self.events],
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

    # Simulated data

    @cached_property
    def measurements(self) -> list[Measurement]:
        return [
            measurement
            for measurement in self.objective.problem.measurements
            if measurement.experiment == self.experiment
        ]

    @cached_property
    def first(self) -> dict[str, float]:
        """The states at the beginning of the experiment, with species as concentrations."""
        times, states, constants = self.record
        with jax.enable_x64(True):
            scope = self.objective.system.scope(jnp.asarray(times[0]), jnp.asarray(states[0]), constants)
            return {name: float(jnp.asarray(scope[name])) for name in self.objective.system.states}

    # Equations

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return self.objective.problem.model.events

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The states: quantities with rates, and quantities that events set."""
        set_by_events = dict.fromkeys(name for event in self.events for name in event.assignments)
        return tuple(dict.fromkeys([*self.objective.system.moving, *set_by_events]))

    @cached_property
    def constants(self) -> dict[str, float]:
        """The values of all names that are neither states nor rules and do not change."""
        problem = self.objective.problem
        values = {**self.objective.values(self.x), **self.record.constants, **self.first}
        apart = {*self.moving, *problem.model.rules, *problem.model.reactions, *self.switched_constants, TIME}
        return {name: float(value) for name, value in values.items() if name not in apart}

    @cached_property
    def switched_constants(self) -> dict[str, Expression]:
        """Constants that later conditions change, as functions of the time."""
        formulas: dict[str, Expression] = {}
        for period in conditions_of(self.objective.problem, self.experiment)[1:]:
            for name, new in period.changes.items():
                if name in self.moving:
                    raise self.refuse(f"a condition sets the state {name!r} at time {period.time:g}")
                old = formulas.get(name, Number(self.first[name]))
                is_before = Application("<", (Symbol(TIME), Number(float(period.time))))
                formulas[name] = Application("piecewise", (old, is_before, new))
        return formulas

    @cached_property
    def rules(self) -> dict[str, Expression]:
        """The formulas of all names but states and constants, written out in states and constants."""
        model = self.objective.problem.model
        definitions = {**model.rules, **model.reactions, **self.switched_constants}
        written_out: dict[str, Expression] = {}

        def write_out(name: str) -> Expression:
            if name not in written_out:
                inside = {
                    symbol: write_out(symbol)
                    for symbol in symbols(definitions[name])
                    if symbol in definitions and symbol != name
                }
                written_out[name] = substitute(definitions[name], inside)
            return written_out[name]

        for name in definitions:
            write_out(name)
        return written_out

    def rewrite(self, formula: Expression) -> Expression:
        """Writes out a formula in states, constants and the time."""
        return substitute(formula, self.rules)

    @cached_property
    def rates(self) -> dict[str, Expression]:
        model = self.objective.problem.model
        rates: dict[str, Expression] = {}
        for name in self.moving:
            rate, container = self.rewrite(model.rates.get(name, Number(0.0))), model.containers.get(name)
            rates[name] = rate if container is None else Application("/", (rate, self.rewrite(Symbol(container))))
        return rates

    @property
    def start(self) -> dict[str, float]:
        return {name: self.first[name] for name in self.moving}

    @cached_property
    def channels(self) -> dict[str, Expression]:
        """The observables, with one channel for each set of placeholder overrides."""
        formulas: dict[str, Expression] = {}
        for name, observable in self.objective.problem.observables.items():
            used_overrides = [
                measurement.overrides for measurement in self.measurements if measurement.observable == name
            ]
            override_sets = list(dict.fromkeys(used_overrides)) or ([()] if not observable.placeholders else [])
            for at, overrides in enumerate(override_sets, start=1):
                placed = substitute(observable.formula, dict(zip(observable.placeholders, overrides, strict=True)))
                formulas[name if at == 1 else f"{name}_{at}"] = self.rewrite(placed)
        return formulas

    def formulas(self) -> Iterator[Expression]:
        """Yields all formulas of the vector field and the events."""
        yield from self.rates.values()
        for event in self.events:
            yield from map(self.rewrite, (event.trigger, *event.assignments.values()))

    def system(self, channels: Sequence[str]) -> System:
        """Returns the system, with states scaled to their largest values in the experiment."""
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

    # Limits

    def check(self) -> None:
        """Refuses features that equations of states with triggers can't express."""
        model = self.objective.problem.model
        if not self.moving:
            raise self.refuse("nothing in it moves")
        for name in self.moving:
            container = model.containers.get(name)
            if container is not None and container in (*self.moving, *model.rules, *self.switched_constants):
                raise self.refuse(f"the compartment {container!r} of {name!r} changes its size")
        for event in self.events:
            if event.delay != Number(0.0) or event.priority != Number(0.0):
                raise self.refuse(f"its event {event.name!r} has a delay or a priority")
            if not any(comparisons(event.trigger)):
                raise self.refuse(f"the trigger of its event {event.name!r} compares nothing")

    def refuse(self, reason: str) -> PEtabError:
        return refuse(self.objective, self.experiment, reason)


def trigger_of(event: Event, written: Callable[[Expression], Expression]) -> dict[str, object]:
    """Converts an event to the form of `Known`: `when`, a level that falls through zero, and `set`, the new values."""
    return {
        "when": write(Application("negative", (written(level(event.trigger)),))),
        "set": {name: write(written(value)) for name, value in event.assignments.items()},
    }


def blank_rows(channels: Sequence[str], times: Float[np.ndarray, " time"]) -> Dataset:
    """Returns a trajectory of zeros at the times."""
    ys = np.zeros((len(times), len(channels)))
    return Dataset.from_arrays([times], [ys], states=channels, time=TIME)
