"""Ensembles: several models of one system, whose spread shows the uncertainty of their predictions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.batch import Batch, in_slices
from ..data.dataset import Dataset, GivenStates, is_single
from ..runtime.compilation import jit_by_size
from ..runtime.placement import AnyArray, ArrayLike, carry, dtype_of, precision_of, scope_of
from ..runtime.serialization import stored_as
from ..solver.problem import Intervals
from ..solver.row_by_row import Front
from .host_rollout import predict_without_compiling
from .neural_ode import NeuralODE, hindcast, with_earlier
from .rollout import (
    Moments,
    Prediction,
    advance_channels,
    begin_channels,
    channels_at,
    count_increases,
    observe_increases,
    predicted_frame,
    reduce_to_beginning,
    without_start,
)

if TYPE_CHECKING:
    import pandas

# Maximum number of trajectories used to estimate the noise, and to calibrate.
ENOUGH_RESIDUALS = 4096
# Levels with a stored factor: 1 % to 99 %.
BAND_LEVELS = np.arange(1, 100) / 100


# Noise added to measurements, and to the first measurement of each channel.
Added = tuple[
    Float[AnyArray, "member trajectory time channel"],
    Float[AnyArray, "member trajectory channel"],
]


@stored_as("Ensemble")
class Ensemble(eqx.Module):
    """Fitted models that differ in their seeds or training data, with calibrated bands.

    A band at level `p` is the members' mean plus and minus `factor(p) * sqrt(spread**2 + noise**2)`, in scaled units.
    `spread` is the members' standard deviation at that time, and `noise` that of the training data around the mean.
    `factor` is chosen so that the bands cover the share `p` of the validation data (split conformal prediction with
    normalised residuals: Lei et al., J. Amer. Statist. Assoc. 113, 2018, section 5.2). For members drawn around a fit,
    it is at least that of Student's t-distribution, since few validation data can fit well by chance. Without
    validation data, it is that of this distribution, or of the normal one, and the bands end at the training data's
    last time: noise and spread do not determine the error of a forecast. If initial states are fitted to rows, each
    member drawn around a fit gets different noise added to these rows (`vary_rows`).

    **Arguments:**

    - `members`: models that differ only in their arrays.
    - `noise`: standard deviation of the training data around the members' mean, scaled, shape `(state,)`.
    - `factors`: the factors of the levels 1 % to 99 %, shape `(99,)`.
    - `calibrated`: whether the factors come from validation data.
    - `gain`: factor by which the members' deviations from their mean are smaller than the deviations they represent.
    - `horizon`: time since the start of a trajectory at which bands end, in the user's unit; None for no end.
    """

    members: tuple[NeuralODE, ...]
    noise: Float[Array, " state"]
    factors: Float[Array, "99"]
    calibrated: bool = eqx.field(static=True)
    horizon: float | None = eqx.field(static=True, default=None)
    gain: float = eqx.field(static=True, default=1.0)

    def __str__(self) -> str:
        return f"Ensemble of {len(self.members)} members, each a {self.members[0]}"

    @staticmethod
    def of(
        members: Sequence[NeuralODE],
        train: Dataset,
        validation: Dataset | None,
        *,
        gain: float = 1.0,
        noise: Float[np.ndarray, " state"] | None = None,
        freedom: float = math.inf,
    ) -> "Ensemble":
        """Makes an ensemble of fitted models.

        **Arguments:** `train`: the data that they were fitted to. `validation`: the data that calibrate the bands, or
        None. `gain`: see the class. `noise`: see the class, with `freedom` degrees of freedom; by default that of the
        training data around the members' mean.
        """
        count, scaler = len(train.states), members[0].scaler
        train, validation = scaler.mark_angles(train), None if validation is None else scaler.mark_angles(validation)
        precision = precision_of(members[0])
        with scope_of(members[0]):
            blank = (np.zeros(count) if noise is None else noise, factors_of_t(freedom))
            horizon = float(np.max(since_start(train, train.ts), where=train.mask.any(axis=2), initial=0))
            ensemble = Ensemble(
                tuple(members), *carry(blank, dtype_of(precision)), calibrated=False, horizon=horizon, gain=gain
            )
            if noise is None:
                train = train.sample(ENOUGH_RESIDUALS)
                mean, _ = ensemble.moments(train)
                known = train.mask & np.isfinite(mean)
                residuals = np.where(known, mean - scaler.scale_measured(train, mean), np.nan)
                deviation = np.sqrt(np.nanmean(residuals**2, axis=(0, 1)))
                ensemble = eqx.tree_at(lambda e: e.noise, ensemble, carry(deviation, dtype_of(precision)))
            if validation is None:
                return ensemble
            validation = validation.sample(ENOUGH_RESIDUALS)
            mean, width = ensemble.moments(validation)
            scores = np.abs(scaler.scale_measured(validation, mean) - mean) / width
            factors = conformal(np.nan_to_num(scores, nan=np.inf, posinf=np.inf)[validation.mask])
            factors = np.maximum(factors, blank[1]) if gain > 1 else factors
            return Ensemble(
                tuple(members), ensemble.noise, carry(factors, dtype_of(precision)), calibrated=True, gain=gain
            )

    def predict(
        self,
        data: Dataset | None = None,
        ts: ArrayLike | None = None,
        *,
        y0: GivenStates = None,
        u: GivenStates = None,
    ) -> Float[np.ndarray, "... state"]:
        """Returns the mean of the members' simulated trajectories, in the user's units.

        The mean is taken in scaled units, so that it respects bounds, over the members with a finite solution there.
        Arguments, shapes and errors are those of `NeuralODE.predict`.
        """
        if data is None:
            ys = self.predict(self.typical.starting_from(y0, ts, u))
            return ys[0] if is_single(y0) else ys
        return self.bands(data, None if ts is None else np.asarray(ts, np.float64)).ys

    def predict_frame(
        self, data: Dataset | None = None, ts: ArrayLike | None = None, **given: Any
    ) -> "pandas.DataFrame":
        """Returns `predict`, with bands, as a data frame; see `Fit.predict_frame`."""
        return predicted_frame(self, data, ts, **given)

    def solve(self, y0: ArrayLike, ts: ArrayLike, u: ArrayLike | None = None, **options: Any) -> diffrax.Solution:
        """Solves each member's vector field in the user's units with Diffrax; see `NeuralODE.solve`.

        **Arguments:**

        - `y0`: all states at the first time, shape `(state,)`, or `(member, state)`, as hidden states differ between
          members.
        - `ts`, `u`, `options`: as in `NeuralODE.solve`.

        **Returns:** a `diffrax.Solution` whose arrays have a leading member axis: `ys` has the shape
        `(member, time, state)`.
        """
        y0 = jnp.asarray(y0, float)
        arrays, static = zip(*(eqx.partition(member, eqx.is_array) for member in self.members), strict=True)

        def one(arrays: NeuralODE, y0: Array) -> diffrax.Solution:
            return eqx.combine(arrays, static[0]).solve(y0, ts, u, **options)

        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        return eqx.filter_vmap(one, in_axes=(0, 0 if y0.ndim == 2 else None))(stacked, y0)

    def bands(
        self,
        data: Dataset,
        ts: Float[np.ndarray, "trajectory saved"] | None = None,
        level: float = 0.9,
        *,
        earlier: bool = False,
    ) -> Prediction:
        """Returns the members' mean, with bands.

        **Arguments:**

        - `data`, `ts`: as in `NeuralODE.predict`.
        - `level`: the share of measurements that the bands should cover, from 0.01 to 0.99.
        - `earlier`: also predict the rows that initial states are estimated from, in hindsight; NaN otherwise.

        **Returns:** a `Prediction` with arrays of shape `(trajectory, saved, state)`, in the user's units; edges beyond
        the horizon are NaN.

        **Raises:** `ValueError` if the level is out of range, or the channels are not those of the fit.
        """
        outputs = self.simulate(data, ts)
        if earlier:
            pairs = zip(outputs, self.members, strict=True)
            outputs = np.stack([with_earlier(output, hindcast(member, data, ts), data, ts) for output, member in pairs])
        mean, width = self.moments_of(outputs)
        reach = self.factor(level) * width
        back = self.members[0].scaler.unscale_states
        edges = np.sort([back(mean - reach), back(mean + reach)], axis=0)
        if self.horizon is not None:
            beyond = since_start(data, data.ts if ts is None else ts) > self.horizon * (1 + 1e-6)
            edges[:, beyond] = np.nan
        return Prediction(back(mean), *edges, hidden=self.typical.hidden_of(outputs[0]))

    def factor(self, level: float) -> float:
        """Returns the factor of a level; see the class."""
        if not BAND_LEVELS[0] <= level <= BAND_LEVELS[-1]:
            raise ValueError(f"level must be from {BAND_LEVELS[0]} to {BAND_LEVELS[-1]}, got {level}.")
        return float(np.interp(level, BAND_LEVELS, np.asarray(self.factors, np.float64)))

    def moments(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None
    ) -> tuple[Float[np.ndarray, "trajectory saved state"], Float[np.ndarray, "trajectory saved state"]]:
        """Returns the members' mean, and the deviation of measurements from it, both in scaled units."""
        return self.moments_of(self.simulate(data, ts))

    def moments_of(
        self, outputs: Float[np.ndarray, "member trajectory saved output"]
    ) -> tuple[Float[np.ndarray, "trajectory saved state"], Float[np.ndarray, "trajectory saved state"]]:
        """Returns the `moments` of simulated trajectories."""
        ys = outputs[..., : len(self.typical.states)]
        finite = np.where(np.isfinite(ys), ys, np.nan)
        alive = np.isfinite(finite).sum(axis=0)
        mean = np.nansum(finite, axis=0) / np.maximum(alive, 1)
        # Squares overflow for members that have diverged.
        with np.errstate(over="ignore"):
            spread = self.gain**2 * np.nansum((finite - mean[None]) ** 2, axis=0) / np.maximum(alive - 1, 1)
        return np.where(alive > 0, mean, np.inf), np.sqrt(spread + np.asarray(self.noise, np.float64) ** 2)

    def simulate(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None
    ) -> Float[np.ndarray, "member trajectory saved output"]:
        """Simulates the trajectories of all members in scaled units, hidden states after the measured ones."""
        first_model = self.members[0]
        first_model.check_channels(data)
        request = first_model.prediction_request(data, ts)
        uncompiled = predict_without_compiling(self.members, *request, self.vary_rows)
        if uncompiled is not None:
            return uncompiled
        precision = precision_of(first_model)
        with scope_of(first_model):
            arrays, static = zip(*(eqx.partition(member, eqx.is_array) for member in self.members), strict=True)
            stacked = jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *arrays)
            every = carry(stacked, dtype_of(precision))
            begun = without_start(every), without_start(static[0])

            def at_times(batch: Batch, wanted: np.ndarray) -> np.ndarray:
                def advance(batch: Batch, intervals: Intervals, front: Front) -> tuple[Array, Front]:
                    placed = carry((batch.origin, intervals, front), dtype_of(precision))
                    return advance_all(*begun, *placed)

                def begin(batch: Batch, first: Intervals) -> tuple[Array, Front]:
                    needed = first_model.start.needed_rows(batch)
                    arrays, needed_rows, intervals = reduce_to_beginning(every, needed, first)
                    static_part = reduce_to_beginning(static[0], needed, first)[0]
                    placed = carry((self.vary_rows(needed), needed_rows, intervals), dtype_of(precision))
                    return begin_all(arrays, static_part, *placed)

                return channels_at(begin, advance, batch, wanted, first_model.solver.interpolation, axis=1)

            def observe(at: Moments, before: Moments) -> Array:
                return observe_all(every, static[0], *carry((at, before), dtype_of(precision)))

            solve = count_increases(first_model, at_times, observe)
            ys = in_slices(solve, *request, axis=1)
        return np.asarray(ys, np.float64)

    def vary_rows(
        self, batch: Batch
    ) -> (
        tuple[Float[np.ndarray, "member trajectory time channel"], Float[np.ndarray, "member trajectory channel"]]
        | None
    ):
        """Returns noise that members drawn around a fit add to the rows of initial states, and to first values.

        It is as large as the measurement noise, so that initial states are as uncertain as the noise makes them. If
        only the first row of a trajectory is known, that row is its exact initial state.
        """
        if self.center is None or not self.typical.start.is_fitted:
            return None
        known = np.asarray(batch.known)
        pairs, rows = len(self.members) // 2, known.shape[1]
        # Drawn row by row, so that the draws do not depend on the number and length of trajectories.
        drawn = np.random.default_rng(0).standard_normal((rows, pairs, known.shape[2])).swapaxes(0, 1)
        signed = np.concatenate([np.zeros((1, *drawn.shape[1:])), drawn, -drawn])[: len(self.members)]
        is_measured = known & known[:, 1:].any(axis=(1, 2), keepdims=True)
        added = np.where(is_measured, signed[:, None] * np.asarray(self.noise, np.float64) / self.gain, 0.0)
        first = known.argmax(axis=1)[None, :, None]
        return added, np.take_along_axis(added, np.broadcast_to(first, (len(added), *first.shape[1:])), axis=2)[:, :, 0]

    @property
    def typical(self) -> NeuralODE:
        """A representative member, for properties that all members share: channels, units, the rule for starts."""
        return self.members[0]

    @property
    def center(self) -> NeuralODE | None:
        """The fit around which members were drawn; None if they were trained."""
        return self.members[0] if self.gain > 1 else None

    def check_channels(self, data: Dataset) -> None:
        """Raises an error if channels of the data are not those of the fit, or not within their bounds."""
        self.typical.check_channels(data)

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """Returns the mean of the members' vector fields; see `NeuralODE.derivative`."""
        return np.mean([member.derivative(ys) for member in self.members], axis=0)

    def constants(self) -> dict[str, float]:
        """Returns the members' median constants of known equations by name, in the user's units."""
        by_member = [member.constants() for member in self.members]
        return {name: float(np.median([constants[name] for constants in by_member])) for name in by_member[0]}


def since_start(data: Dataset, ts: Float[np.ndarray, "trajectory saved"]) -> Float[np.ndarray, "trajectory saved"]:
    """Returns times since the first row of each trajectory."""
    return ts - data.ts[:, :1]


def factors_of_t(freedom: float) -> Float[np.ndarray, "99"]:
    """Returns the quantiles of Student's t at all levels; those of the normal distribution for infinite freedom."""
    from scipy.special import ndtri, stdtrit

    tails = (1 + BAND_LEVELS) / 2
    return np.asarray(ndtri(tails) if math.isinf(freedom) else stdtrit(freedom, tails))


def conformal(scores: Float[np.ndarray, " value"]) -> Float[np.ndarray, "99"]:
    """Computes the conformal quantiles of `scores` at all levels, at most the largest score."""
    ordered = np.sort(scores[np.isfinite(scores)])
    if ordered.size == 0:
        return np.full(len(BAND_LEVELS), np.inf)
    ranks = [min(math.ceil((scores.size + 1) * p), ordered.size) for p in BAND_LEVELS]
    return ordered[np.array(ranks) - 1]


def add_to_rows(
    batch: Batch, added: Float[AnyArray, "trajectory time channel"], first: Float[AnyArray, "trajectory channel"]
) -> Batch:
    """Adds a member's noise to a batch, see `Ensemble.vary_rows`."""
    return replace(batch, ys=batch.ys + added, first=batch.first + first)


@jit_by_size
def begin_all(
    stacked: NeuralODE, static: NeuralODE, added: Added | None, batch: Batch, first: Intervals
) -> tuple[Array, Front]:
    def one(arrays: NeuralODE, added: tuple[Array, Array] | None) -> tuple[Array, Front]:
        varied = batch if added is None else add_to_rows(batch, *added)
        return begin_channels(eqx.combine(arrays, static), varied, first)

    return jax.vmap(one)(stacked, added)


@jit_by_size
def observe_all(
    stacked: NeuralODE, static: NeuralODE, at: Moments, before: Moments
) -> Float[Array, "member trajectory saved channel"]:
    def one(arrays: NeuralODE, states: Array, states_before: Array) -> Array:
        model = eqx.combine(arrays, static)
        return observe_increases(model, (at[0], states, at[2]), (before[0], states_before, before[2]))

    return jax.vmap(one)(stacked, jnp.asarray(at[1]), jnp.asarray(before[1]))


@jit_by_size
def advance_all(
    stacked: NeuralODE, static: NeuralODE, origin: Float[Array, " trajectory"], intervals: Intervals, fronts: Front
) -> tuple[Array, Front]:
    def one(arrays: NeuralODE, front: Front) -> tuple[Array, Front]:
        return advance_channels(eqx.combine(arrays, static), origin, intervals, front)

    return jax.vmap(one)(stacked, fronts)
