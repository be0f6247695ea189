"""A fitted problem as records over time: the data and curves of which pages and pictures are drawn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..data.dataset import Dataset
from ..plots.curves import TRAIN, Curves
from .objective import Objective
from .tables import Measurement, Problem

CURVE_POINTS = 200


@dataclass
class ExperimentRecord:
    """Measurements of an experiment that one curve passes: each observable has a value at a time, and one set of
    overrides.

    - `first`: a measurement of each observable. `values`: the measured ones, by time and observable.
    """

    name: str
    first: dict[str, Measurement] = field(default_factory=dict)
    values: dict[float, dict[str, float]] = field(default_factory=dict)

    def holds(self, each: Measurement) -> bool:
        """Whether a measurement can't be added: replicates and other overrides need a record of their own."""
        other = self.first.get(each.observable, each)
        return other.overrides != each.overrides or each.observable in self.values.get(each.time, {})

    def add(self, each: Measurement) -> None:
        self.first.setdefault(each.observable, each)
        self.values.setdefault(each.time, {})[each.observable] = each.value


def sort_into_records(measurements: Iterable[Measurement]) -> list[ExperimentRecord]:
    """The records of measurements, without those at an infinite time."""
    found: dict[str, list[ExperimentRecord]] = {}
    for each in measurements:
        if not math.isfinite(each.time):
            continue
        records = found.setdefault(each.experiment, [])
        record = next((record for record in records if not record.holds(each)), None)
        if record is None:
            name = each.experiment or "measured"
            record = ExperimentRecord(f"{name} ({len(records) + 1})" if records else name)
            records.append(record)
        record.add(each)
    return [record for records in found.values() for record in records]


class Drawn(NamedTuple):
    """What is drawn: measurements by record, what is simulated at their times, and curves between them."""

    data: Dataset
    predicted: Float[np.ndarray, "record time observable"]
    curves: Curves


def simulate_records(objective: Objective, x: ArrayLike) -> Drawn | None:
    """The records of a problem at a point; `None` if nothing is measured at a finite time."""
    problem = objective.problem
    records = sort_into_records(problem.measurements)
    if not records:
        return None
    measured = {name for record in records for name in record.first}
    states = [name for name in problem.observables if name in measured]
    times = [np.array(sorted(record.values)) for record in records]
    ys = [
        np.array([[record.values[time].get(name, np.nan) for name in states] for time in own.tolist()])
        for record, own in zip(records, times, strict=True)
    ]
    data = Dataset.from_arrays(times, ys, states=states, trajectories=[each.name for each in records], time="time")
    smooth = [
        np.linspace(begin_of(problem, record), own[-1], CURVE_POINTS)
        for record, own in zip(records, times, strict=True)
    ]
    places = list(zip(records, smooth, times, strict=True))
    simulated = iter(simulate_at(objective, x, dense_measurements(places)).tolist())
    dense = np.full((len(records), CURVE_POINTS, len(states)), np.nan)
    predicted = np.full(data.ys.shape, np.nan)
    for at, (record, curve, own) in enumerate(places):
        for name in record.first:
            column = states.index(name)
            dense[at, :, column] = [next(simulated) for _ in curve]
            predicted[at, : len(own), column] = [next(simulated) for _ in own]
    return Drawn(data, predicted, Curves({TRAIN: data}, {TRAIN: (np.stack(smooth), dense)}, at_rows={TRAIN: predicted}))


Places = Sequence[tuple[ExperimentRecord, np.ndarray, np.ndarray]]


def dense_measurements(places: Places) -> list[Measurement]:
    """For each record and its observables, something to simulate at the times of the curve and of the rows."""
    return [
        first._replace(time=time, value=1.0)
        for record, curve, own in places
        for first in record.first.values()
        for time in (*curve.tolist(), *own.tolist())
    ]


def begin_of(problem: Problem, record: ExperimentRecord) -> float:
    """When the experiment of a record begins, after its equilibrium."""
    periods = problem.experiments[next(iter(record.first.values())).experiment]
    return next(period.time for period in periods if math.isfinite(period.time))


def simulate_at(objective: Objective, x: ArrayLike, wanted: Sequence[Measurement]) -> Float[np.ndarray, " wanted"]:
    """The values of other measurements than the problem's."""
    used = {each.experiment for each in wanted}
    experiments = {name: periods for name, periods in objective.problem.experiments.items() if name in used}
    problem = replace(objective.problem, measurements=tuple(wanted), experiments=experiments)
    return Objective(problem, objective.tolerances).simulate(x)
