"""Known equations simulated and fitted by NumPy, so that they have a first answer before anything is compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..discover.simulation import step_explicitly
from ..expressions.evaluation import Rows, Tape
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model.fields.equations import Equations, as_mapping, normalize
from ..model.fields.known import Constants, Known
from ..model.make_model import keywords, made_of

# Steps of Runge and Kutta's method between two rows, fewer of long records, so that a simulation has at most so many.
HOST_STEPS, MAX_HOST_STEPS = 4, 400
# The error of a simulation beyond which nothing is said of it, as a share of the data's spread.
MAX_SIMULATION_ERROR = 0.02
# Larger problems would take the time of the fit itself.
MAX_HOST_STARTS, MAX_HOST_VALUES = 40, 20_000
# The fit ends with this many evaluations, or by steps with a smaller relative decrease.
MAX_HOST_EVALUATIONS, SMALL_RELATIVE_DECREASE = 30, 1e-4
# Relative step of finite differences, and a residual of a simulation that fails.
RELATIVE_DIFFERENCE, FAILED_MISFIT = 1e-6, 1e6
# Other first values are within this factor of those given.
DRAW_FACTOR = 100.0

Members = Float[np.ndarray, "member trajectory state"]


@dataclass(frozen=True)
class FirstFit:
    """A fit of known equations that a thorough one will replace.

    - `constants`: their values by name.
    - `ts`, `ys`: times and predictions of the data by their roles, at each of `steps` solver steps from row to row, in
      the user's units.
    """

    constants: Mapping[str, float]
    ts: Mapping[str, Float[np.ndarray, "trajectory step"]]
    ys: Mapping[str, Float[np.ndarray, "trajectory step channel"]]
    steps: int

    def at_rows(self, role: str) -> Float[np.ndarray, "trajectory time channel"]:
        """The predictions of the rows of a part of the data."""
        return self.ys[role][:, :: self.steps]


def fit_without_compiling(
    field: object, splits: Mapping[str, Dataset], train: str, *, draws: int = 0
) -> FirstFit | None:
    """Fits the constants of known equations to training data, and the starts of its trajectories if they are few.

    **Arguments:** `field`: what makes the vector field. `splits`: data by their roles. `train`: that of training data.
    `draws`: number of other first values, within a factor of a hundred, from the best of which the fit begins.

    **Returns:** the fit; None where the field is another one or has parts that need the solver (triggers, local
    constants), where the data are many, or where a few steps between rows can't simulate the equations.
    """
    data, rows = splits[train], max(part.ts.shape[1] for part in splits.values())
    equations, steps = HostEquations.of(field, data), min(HOST_STEPS, MAX_HOST_STEPS // rows)
    if equations is None or not steps or max(part.ys.size for part in splits.values()) > MAX_HOST_VALUES:
        return None
    problem = HostProblem(equations, data, steps)
    with np.errstate(all="ignore"):
        raw, starts = problem.split(problem.fit(draws).x[None])
        ys = {train: problem.simulate(raw, starts)[0]} | {
            role: HostProblem(equations, part, steps).predict(raw[0]) for role, part in splits.items() if role != train
        }
        finer = HostProblem(equations, data, 2 * steps).simulate(raw, starts)[0, :, ::2]
        errors = np.abs((finer - ys[train]) / problem.scales)
    if not errors.max() <= MAX_SIMULATION_ERROR or not all(np.isfinite(found).all() for found in ys.values()):
        return None
    constants = {name: float(value) for name, value in equations.constants.named(raw[0]).items()}
    return FirstFit(constants, {role: step_times(part.ts, steps) for role, part in splits.items()}, ys, steps)


def step_times(ts: Float[np.ndarray, "trajectory time"], steps: int) -> Float[np.ndarray, "trajectory step"]:
    """The times of so many even steps between neighbouring rows, with those of the rows."""
    begin, shares = ts[:, :-1, None], np.arange(steps) / steps
    between = begin + (ts[:, 1:, None] - begin) * shares
    return np.concatenate([between.reshape(len(ts), -1), ts[:, -1:]], axis=1)


@dataclass(frozen=True)
class HostEquations:
    """Right-hand sides compiled to NumPy's operations, with the constants that they have.

    - `rates`: of each state, from the states, the inputs, the time and the constants, in this order.
    - `states`: names, the measured ones first.
    """

    rates: Tape
    states: tuple[str, ...]
    constants: Constants

    @staticmethod
    def of(field: object, data: Dataset) -> "HostEquations | None":
        """The equations of what makes a vector field; None where it has other parts, or a name that is unknown."""
        given = dict(keywords(field))
        if not callable(field) or made_of(field) is not Known or given.get("local") or given.get("triggers"):
            return None
        trees = Equations.of(as_mapping(given["equations"])).trees
        constants = Constants.of(given.get("constants") or {})
        hidden = [name for name in trees if name not in data.states]
        names = [normalize(name) for name in (*data.states, *hidden, *data.inputs, data.time, *constants.names)]
        if not set(data.states) <= set(trees):
            return None
        states = (*data.states, *hidden)
        try:
            return HostEquations(Tape([trees[name] for name in states], names), states, constants)
        except KeyError:
            return None


@dataclass(frozen=True)
class HostProblem:
    """Equations, the data that they are fitted to, and the solver's steps between two rows."""

    equations: HostEquations
    data: Dataset
    steps: int

    @property
    def scales(self) -> Float[np.ndarray, " channel"]:
        """The spread of each channel, 1 of one that does not vary."""
        spread = np.nanstd(np.where(self.data.mask, self.data.ys, np.nan), axis=(0, 1))
        return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)

    @property
    def first(self) -> Float[np.ndarray, "trajectory state"]:
        """The first measured values; 0 of states that are not measured, or are given doses before they are."""
        data, hidden = self.data, len(self.equations.states) - len(self.data.states)
        measured = data.first if data.events is None else data.ys[:, 0]
        return np.pad(np.nan_to_num(measured), ((0, 0), (0, hidden)))

    @property
    def fits_starts(self) -> bool:
        """Whether starts are parameters, too; doses begin at a known state."""
        return self.data.events is None and self.first.size <= MAX_HOST_STARTS

    @cached_property
    def drivers(self) -> Float[np.ndarray, "interval step 3 driver trajectory"]:
        """Inputs and time at the begin, middle and end of each of the solver's steps."""
        data = self.data
        rows = np.concatenate([data.us, data.ts[..., None]], axis=-1).transpose(1, 2, 0)
        shares = (np.arange(self.steps)[:, None] + [0, 0.5, 1])[..., None, None] / self.steps
        between = rows[:-1, None, None] + shares * np.diff(rows, axis=0)[:, None, None]
        if data.has_held_inputs:
            between[..., :-1, :] = rows[:-1, None, None, :-1]
        return between

    def jumped(self, row: int, y: np.ndarray) -> np.ndarray:
        """States `(state, member, trajectory)` just after the events of a row."""
        if (events := self.data.events) is None:
            return y
        y = y.copy()
        for at, name in enumerate(events.states):
            state = self.equations.states.index(name)
            y[state] = events.factor[:, row, at] * y[state] + events.shift[:, row, at]
        return y

    def simulate(
        self, raw: Float[np.ndarray, "member free"], starts: Members
    ) -> Float[np.ndarray, "member trajectory step channel"]:
        """The channels of members with other constants and starts, by the classical method of Runge and Kutta."""
        data, constants, steps = self.data, self.equations.constants, self.steps
        values = [constants.named(each) for each in raw]
        own: list[Rows] = [np.array([[float(each[name])] for each in values]) for name in constants.names]

        def slope(y: np.ndarray, given: np.ndarray, into: np.ndarray) -> np.ndarray:
            for at, rate in enumerate(self.equations.rates([*y, *given, *own])):
                into[at] = rate
            return into

        ys, y = [starts], np.moveaxis(starts, -1, 0)
        buffers = [np.empty_like(y) for _ in range(4)]
        for row, drivers in enumerate(self.drivers):
            y = self.jumped(row, y)
            for given in drivers:
                y = step_explicitly(slope, y, (data.ts[:, row + 1] - data.ts[:, row]) / steps, given, buffers)
                ys.append(np.moveaxis(y, 0, -1))
        return np.stack(ys, axis=2)[..., : len(data.states)]

    def predict(self, raw: Float[np.ndarray, " free"]) -> Float[np.ndarray, "trajectory step channel"]:
        """Predictions from the first measured values."""
        return self.simulate(raw[None], self.first[None])[0]

    def split(self, x: Float[np.ndarray, "member parameter"]) -> tuple[Float[np.ndarray, "member free"], Members]:
        """Constants on the real line, and starts in the user's units."""
        free = len(self.equations.constants.free())
        moves = x[:, free:].reshape(len(x), -1, len(self.equations.states))
        unit = np.pad(self.scales, (0, len(self.equations.states) - len(self.scales)), constant_values=1.0)
        starts = np.broadcast_to(self.first, (len(x), *self.first.shape))
        return x[:, :free], starts + moves * unit if self.fits_starts else starts

    def residuals(self, x: Float[np.ndarray, "member parameter"]) -> Float[np.ndarray, "member residual"]:
        """The differences from what was measured, in units of the spread; limits are left out."""
        measured = self.data.middles
        misfit = (self.simulate(*self.split(x))[:, :, :: self.steps] - measured) / self.scales
        found = misfit[:, self.data.mask & np.isfinite(measured)]
        return np.where(np.isfinite(found), found, FAILED_MISFIT)

    def linearise(self, x: Float[np.ndarray, " parameter"]) -> LinearisedPoint:
        """The residuals with their derivatives by differences, from one simulation of all members."""
        steps = RELATIVE_DIFFERENCE * np.maximum(np.abs(x), 1.0)
        here, *moved = self.residuals(np.vstack([x, x + np.diag(steps)]))
        return LinearisedPoint(x, here, ((np.array(moved).reshape(-1, here.size) - here) / steps[:, None]).T)

    def fit(self, draws: int) -> LinearisedPoint:
        """The best point of Levenberg and Marquardt's method, from the first values, or from the best of some draws."""
        constants = self.equations.constants
        raw = np.asarray(constants.raw, float)[None]
        if draws:
            raw = np.vstack(
                [raw, constants.around(np.random.default_rng(0).random((draws, raw.shape[1])), DRAW_FACTOR)]
            )
        x = np.pad(raw, ((0, 0), (0, self.first.size if self.fits_starts else 0)))
        losses = (self.residuals(x) ** 2).sum(axis=1)
        rule = DampedSteps[LinearisedPoint, np.ndarray](
            LinearisedPoint.step,
            Damping(),
            max_evaluations=MAX_HOST_EVALUATIONS,
            is_still=lambda here, there: 0 <= here.value - there.value < SMALL_RELATIVE_DECREASE * here.value,
        )
        return minimize(self.linearise(x[int(np.argmin(losses))]), rule, self.linearise)
