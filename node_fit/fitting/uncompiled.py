"""Simulates and fits known equations in NumPy, to provide a first result before anything is compiled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.inputs import Interpolations, are_held
from ..discover.simulation import step_explicitly
from ..expressions.evaluation import Rows, Tape
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model.fields.equations import Equations, as_mapping, normalize
from ..model.fields.known import Constants, Known
from ..model.make_model import keywords, maker_class

# Runge-Kutta steps between two rows, and the maximum number of steps per simulation, which limits the former.
HOST_STEPS, MAX_HOST_STEPS = 4, 400
# Simulation error above which no result is reported, as a fraction of the data's spread.
MAX_SIMULATION_ERROR = 0.02
# Maximum problem size; larger problems would take as long as the fit itself.
MAX_HOST_STARTS, MAX_HOST_VALUES = 40, 20_000
# Maximum number of evaluations of a fit, and the relative decrease per step below which it ends.
MAX_HOST_EVALUATIONS, SMALL_RELATIVE_DECREASE = 30, 1e-4
# Relative step of finite differences, and the residual assigned to a failed simulation.
RELATIVE_DIFFERENCE, FAILED_MISFIT = 1e-6, 1e6
# Alternative initial values lie within this factor of the specified ones.
DRAW_FACTOR = 100.0

# Lead in minus twice the log-likelihood, and ratio of the errors, from which states respond to another interpolation of
# the inputs than they look like.
CLEAR_LEAD, CLEAR_GAIN = 10.0, 1.05

Members = Float[np.ndarray, "member trajectory state"]


@dataclass(frozen=True)
class FirstFit:
    """A preliminary fit of known equations.

    - `constants`: fitted values by name.
    - `ts`, `ys`: times and predictions by role of the data, at each of `steps` solver steps per row interval, in the
      user's units.
    - `inputs`: interpolation of inputs between rows. `gain`: ratio of the error with inputs as they look to that of
      this fit; above 1 if their interpolation is another one.
    """

    constants: Mapping[str, float]
    ts: Mapping[str, Float[np.ndarray, "trajectory step"]]
    ys: Mapping[str, Float[np.ndarray, "trajectory step channel"]]
    steps: int
    inputs: Interpolations = "linear"
    gain: float = 1.0

    def at_rows(self, role: str) -> Float[np.ndarray, "trajectory time channel"]:
        """Returns the predictions at the rows of a part of the data."""
        return self.ys[role][:, :: self.steps]


def fit_without_compiling(
    field: object,
    splits: Mapping[str, Dataset],
    train: str,
    *,
    draws: int = 0,
    inputs: Interpolations | Literal["auto"] = "auto",
) -> FirstFit | None:
    """Fits the constants of known equations to training data, and the initial states if they are few.

    Rows do not show whether an input that changes in each of them is held in between, but the response of the states
    does: by default, the likelihood of fits with different interpolations decides.

    **Arguments:** `field`: constructor of the vector field. `splits`: data by role. `train`: role of the training data.
    `draws`: number of alternative initial values, within a factor of a hundred; the fit begins from the best.
    `inputs`: interpolation of inputs between rows.

    **Returns:** the fit; None if the field is of another kind or has parts that need the solver (triggers, local
    constants), if the data are too large, or if a few steps between rows can't simulate the equations accurately.
    """
    data, rows = splits[train], max(part.ts.shape[1] for part in splits.values())
    equations, steps = HostEquations.of(field, data), min(HOST_STEPS, MAX_HOST_STEPS // rows)
    if equations is None or not steps or max(part.ys.size for part in splits.values()) > MAX_HOST_VALUES:
        return None
    with np.errstate(all="ignore"):
        fits: dict[Interpolations, LinearisedPoint] = {}
        for tried in interpolations_to_compare(data, inputs):
            own = HostProblem(equations, data, steps, are_held(tried, len(data.inputs)))
            # Another interpolation moves the optimum a little, so the fit goes on from there.
            begin = next(iter(fits.values())).x if fits else own.draw(draws)
            fits[tried] = own.fit(begin)
        kinds, gain = choose_by_likelihood(data, {tried: fit.residuals for tried, fit in fits.items()})
        held = are_held(kinds, len(data.inputs))
        problem = HostProblem(equations, data, steps, held)
        raw, starts = problem.split(fits[kinds].x[None])
        ys = {train: problem.simulate(raw, starts)[0]} | {
            role: HostProblem(equations, part, steps, held).predict(raw[0])
            for role, part in splits.items()
            if role != train
        }
        finer = HostProblem(equations, data, 2 * steps, held).simulate(raw, starts)[0, :, ::2]
        errors = np.abs((finer - ys[train]) / problem.scales)
    if not errors.max() <= MAX_SIMULATION_ERROR or not all(np.isfinite(predicted).all() for predicted in ys.values()):
        return None
    constants = {name: float(value) for name, value in equations.constants.values_by_name(raw[0]).items()}
    times = {role: step_times(part.ts, steps) for role, part in splits.items()}
    return FirstFit(constants, times, ys, steps, kinds, gain)


def interpolations_to_compare(data: Dataset, inputs: Interpolations | Literal["auto"]) -> list[Interpolations]:
    """Returns the interpolations of inputs to compare; as they look comes first."""
    if inputs != "auto":
        return [inputs]
    if not data.is_driven:
        return ["linear"]
    looks = data.input_interpolation[0]
    others: list[Interpolations] = ["hold", "linear"]
    held = data.held_inputs
    return [looks, *(kinds for kinds in others if are_held(kinds, len(held)) != held)]


def choose_by_likelihood(
    data: Dataset, residuals: Mapping[Interpolations, Float[np.ndarray, " residual"]]
) -> tuple[Interpolations, float]:
    """Returns the most likely of some interpolations and its gain; the first one, unless another is clearly better."""
    first = next(iter(residuals))
    channel = np.nonzero(data.mask & np.isfinite(data.middles))[-1]
    counts = np.bincount(channel, minlength=len(data.states))
    squares = {
        kinds: np.bincount(channel, off**2, len(counts)) + np.finfo(float).tiny for kinds, off in residuals.items()
    }
    leads = {kinds: float(counts @ np.log(squares[first] / own)) for kinds, own in squares.items()}
    best = max(leads, key=lambda kinds: leads[kinds])
    gain = math.sqrt(squares[first].sum() / squares[best].sum())
    return (best, gain) if leads[best] > CLEAR_LEAD and gain > CLEAR_GAIN else (first, 1.0)


def step_times(ts: Float[np.ndarray, "trajectory time"], steps: int) -> Float[np.ndarray, "trajectory step"]:
    """Returns the times of `steps` equal steps between neighbouring rows, including those of the rows."""
    begin, shares = ts[:, :-1, None], np.arange(steps) / steps
    between = begin + (ts[:, 1:, None] - begin) * shares
    return np.concatenate([between.reshape(len(ts), -1), ts[:, -1:]], axis=1)


@dataclass(frozen=True)
class HostEquations:
    """Right-hand sides as NumPy operations, with their constants.

    - `rates`: the rate of each state, from states, inputs, time and constants, in this order.
    - `states`: names, the measured ones first.
    """

    rates: Tape
    states: tuple[str, ...]
    constants: Constants

    @staticmethod
    def of(field: object, data: Dataset) -> "HostEquations | None":
        """Returns the equations of a vector field's constructor; None if it has other parts or unknown names."""
        arguments = dict(keywords(field))
        if (
            not callable(field)
            or maker_class(field) is not Known
            or arguments.get("local")
            or arguments.get("triggers")
        ):
            return None
        trees = Equations.of(as_mapping(arguments["equations"])).trees
        constants = Constants.of(arguments.get("constants") or {})
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
    """Equations, the data to fit, the number of solver steps between two rows, and whether each input is held there."""

    equations: HostEquations
    data: Dataset
    steps: int
    held: tuple[bool, ...] = ()

    @property
    def scales(self) -> Float[np.ndarray, " channel"]:
        """The spread of each channel; 1 for constant channels."""
        spread = np.nanstd(np.where(self.data.mask, self.data.ys, np.nan), axis=(0, 1))
        return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)

    @property
    def first(self) -> Float[np.ndarray, "trajectory state"]:
        """The first measured values; 0 for unmeasured states, and for states dosed before their first measurement."""
        data, hidden = self.data, len(self.equations.states) - len(self.data.states)
        measured = data.first if data.events is None else data.ys[:, 0]
        return np.pad(np.nan_to_num(measured), ((0, 0), (0, hidden)))

    @property
    def fits_starts(self) -> bool:
        """Whether initial states are parameters; with doses, they are known."""
        return self.data.events is None and self.first.size <= MAX_HOST_STARTS

    @cached_property
    def drivers(self) -> Float[np.ndarray, "interval step 3 driver trajectory"]:
        """Inputs and time at the beginning, middle and end of each solver step."""
        data = self.data
        rows = np.concatenate([data.us, data.ts[..., None]], axis=-1).transpose(1, 2, 0)
        shares = (np.arange(self.steps)[:, None] + [0, 0.5, 1])[..., None, None] / self.steps
        between = rows[:-1, None, None] + shares * np.diff(rows, axis=0)[:, None, None]
        held = np.flatnonzero(self.held)
        between[..., held, :] = rows[:-1, None, None, held]
        return between

    def apply_events(self, row: int, y: np.ndarray) -> np.ndarray:
        """Returns the states `(state, member, trajectory)` just after the events of a row."""
        if (events := self.data.events) is None:
            return y
        y = y.copy()
        for index, name in enumerate(events.states):
            state = self.equations.states.index(name)
            y[state] = events.factor[:, row, index] * y[state] + events.shift[:, row, index]
        return y

    def simulate(
        self, raw: Float[np.ndarray, "member free"], starts: Members
    ) -> Float[np.ndarray, "member trajectory step channel"]:
        """Simulates the channels for each member's constants and starts, using the classical Runge-Kutta method."""
        data, constants, steps = self.data, self.equations.constants, self.steps
        values = [constants.values_by_name(free) for free in raw]
        columns: list[Rows] = [np.array([[float(named[name])] for named in values]) for name in constants.names]

        def slope(y: np.ndarray, given: np.ndarray, into: np.ndarray) -> np.ndarray:
            for index, rate in enumerate(self.equations.rates([*y, *given, *columns])):
                into[index] = rate
            return into

        ys, y = [starts], np.moveaxis(starts, -1, 0)
        buffers = [np.empty_like(y) for _ in range(4)]
        for row, drivers in enumerate(self.drivers):
            y = self.apply_events(row, y)
            for driver in drivers:
                y = step_explicitly(slope, y, (data.ts[:, row + 1] - data.ts[:, row]) / steps, driver, buffers)
                ys.append(np.moveaxis(y, 0, -1))
        return np.stack(ys, axis=2)[..., : len(data.states)]

    def predict(self, raw: Float[np.ndarray, " free"]) -> Float[np.ndarray, "trajectory step channel"]:
        """Predicts from the first measured values."""
        return self.simulate(raw[None], self.first[None])[0]

    def split(self, x: Float[np.ndarray, "member parameter"]) -> tuple[Float[np.ndarray, "member free"], Members]:
        """Splits parameters into unconstrained constants and starts in the user's units."""
        free = len(self.equations.constants.free())
        moves = x[:, free:].reshape(len(x), -1, len(self.equations.states))
        unit = np.pad(self.scales, (0, len(self.equations.states) - len(self.scales)), constant_values=1.0)
        starts = np.broadcast_to(self.first, (len(x), *self.first.shape))
        return x[:, :free], starts + moves * unit if self.fits_starts else starts

    def residuals(self, x: Float[np.ndarray, "member parameter"]) -> Float[np.ndarray, "member residual"]:
        """Computes residuals in units of the spread, without censored values."""
        measured = self.data.middles
        misfit = (self.simulate(*self.split(x))[:, :, :: self.steps] - measured) / self.scales
        residuals = misfit[:, self.data.mask & np.isfinite(measured)]
        return np.where(np.isfinite(residuals), residuals, FAILED_MISFIT)

    def linearise(self, x: Float[np.ndarray, " parameter"]) -> LinearisedPoint:
        """Computes residuals and their finite-difference derivatives, from one simulation of all members."""
        steps = RELATIVE_DIFFERENCE * np.maximum(np.abs(x), 1.0)
        residuals, *moved = self.residuals(np.vstack([x, x + np.diag(steps)]))
        return LinearisedPoint(
            x, residuals, ((np.array(moved).reshape(-1, residuals.size) - residuals) / steps[:, None]).T
        )

    def draw(self, draws: int) -> Float[np.ndarray, " parameter"]:
        """Returns the initial values, or the best of some draws around them."""
        constants = self.equations.constants
        raw = np.asarray(constants.raw, float)[None]
        if draws:
            raw = np.vstack(
                [raw, constants.around(np.random.default_rng(0).random((draws, raw.shape[1])), DRAW_FACTOR)]
            )
        x = np.pad(raw, ((0, 0), (0, self.first.size if self.fits_starts else 0)))
        return x[int(np.argmin((self.residuals(x) ** 2).sum(axis=1)))] if draws else x[0]

    def fit(self, begin: Float[np.ndarray, " parameter"]) -> LinearisedPoint:
        """Runs the Levenberg-Marquardt method from some parameters."""
        rule = DampedSteps[LinearisedPoint, np.ndarray](
            LinearisedPoint.step,
            Damping(),
            max_evaluations=MAX_HOST_EVALUATIONS,
            is_still=lambda here, there: 0 <= here.value - there.value < SMALL_RELATIVE_DECREASE * here.value,
        )
        return minimize(self.linearise(begin), rule, self.linearise)
