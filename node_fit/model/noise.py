"""The measurement noise of a model: formulas of its standard deviation, and its constants."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.dataset import Dataset
from ..data.noise import FEWEST_RESIDUALS, near_distances
from ..data.noise_formula import PREDICTION, NoiseFormula
from ..likelihood.losses import AbstractLikelihood, Squares
from ..runtime.serialization import stored_as
from .fields.equations import Equations, normalize, parse
from .fields.known import ConstantConfig, Constants
from .system import System

# Description of a noise formula in error messages.
NOISE_TEXT = "sigma of"
# Initial noise, as a share of the spread of a state, if rows do not determine it.
UNKNOWN_SHARE = 0.1
# Tolerance of initial values, in powers of e.
NEAR_ENOUGH = 1e-2
# With several constants, each is lowered by this power of e in one additional initial guess.
FEWER = 3.0
# Initial values of noise constants that are not scales.
FIRST_SHAPES: Mapping[str, ConstantConfig] = {"dispersion": [0.1, 0, None], "degrees": [4.0, 1, None]}


@stored_as("NoiseModel")
class NoiseModel(eqx.Module):
    """The noise of the channels: formulas of the standard deviations, and trained constants.

    **Arguments:** (`make_noise` makes and checks them.)

    - `formulas`: by channel, in the user's units; none if the standard deviation is known or follows from a count.
    - `constants`: those in the formulas, and those of the distribution (`shapes`).
    - `channels`: the names of the channels.
    - `log_channels`: those whose noise is log-normal.
    - `shapes`: the names of the distribution's constants, for each channel in the order of its likelihood.
    """

    formulas: Equations
    constants: Constants
    channels: tuple[str, ...] = eqx.field(static=True)
    log_channels: tuple[str, ...] = eqx.field(static=True, default=())
    shapes: tuple[tuple[str, ...], ...] = eqx.field(static=True, default=())

    @property
    def has_formulas(self) -> bool:
        return bool(self.formulas.texts)

    def is_log(self) -> np.ndarray:
        """Returns whether each channel has log-normal noise, shape `(channel,)`."""
        return np.array([name in self.log_channels for name in self.channels], bool)

    def deviations(
        self, names: Mapping[str, Float[Array, "..."]], channels: Float[Array, "channel ..."]
    ) -> Float[Array, "channel ..."]:
        """Computes the standard deviations at one or more rows, in the user's units.

        **Arguments:** `names`: values of states, inputs, the time and other constants; `channels`: predicted values.
        """
        predicted = dict(zip(self.channels, channels, strict=True))
        values = {**names, **predicted, **self.constants.values()}
        deviations = [
            Equations(((name, text),))({**values, PREDICTION: values.get(PREDICTION, predicted[name])})[name]
            for name, text in self.formulas.texts
        ]
        return jnp.stack([jnp.broadcast_to(deviation, channels.shape[1:]) for deviation in deviations])

    def log_shapes(self) -> tuple[Float[Array, " channel"], ...]:
        """Returns the logarithms of the distribution's constants, arrays of shape `(channel,)`."""
        values = self.constants.values()
        rows = zip(*self.shapes, strict=True)
        return tuple(jnp.log(jnp.stack([values[name] for name in row])) for row in rows)


def needs_noise_model(train: Dataset, loss: AbstractLikelihood) -> bool:
    """Whether the noise of a fit has constants, or a likelihood that is not a function of scaled residuals."""
    return bool(train.noise) or train.censored is not None or loss.is_count or bool(loss.shapes)


def make_noise(
    train: Dataset, loss: AbstractLikelihood, system: System, constants: Mapping[str, float]
) -> NoiseModel | None:
    """Makes the noise model for the data and the likelihood; None if least squares need none.

    **Arguments:**

    - `train`: the training data, with formulas of the noise and marks of censored values.
    - `system`: names of states, inputs and time. `constants`: values of the constants of the field and the observation.

    **Raises:** `ValueError` if a likelihood does not suit the data, or a formula is wrong.
    """
    if not needs_noise_model(train, loss):
        return None
    check_likelihood(train, loss)
    formulas = formulas_of(train, loss)
    taken = {normalize(name) for name in (*system.states, *train.states, *system.inputs, system.time, *constants)}
    entries: dict[str, ConstantConfig] = {}
    for state, formula in formulas.items():
        entries |= first_constants(state, formula, train, taken, constants)
    single = len(train.states) == 1
    shapes = tuple(tuple(name if single else f"{name}_{state}" for name in loss.shapes) for state in train.states)
    for row in shapes:
        entries |= {name: FIRST_SHAPES[shape] for name, shape in zip(row, loss.shapes, strict=True)}
    duplicates = sorted(name for name in entries if normalize(name) in taken)
    if duplicates:
        raise ValueError(f"{duplicates[0]!r} is a constant of the noise and a name of the model; rename one.")
    texts = tuple((state, " ".join(formula.text.replace("^", "**").split())) for state, formula in formulas.items())
    log_channels = tuple(state for state, formula in formulas.items() if formula.is_log)
    return NoiseModel(Equations(texts), Constants.of(entries), train.states, log_channels, shapes)


def check_likelihood(train: Dataset, loss: AbstractLikelihood) -> None:
    """Raises an error for invalid counts, noise formulas for counts, and censored values unless noise is normal."""
    kind = type(loss).__name__
    if train.censored is not None and not isinstance(loss, Squares):
        raise ValueError(f"censored values need normal noise, loss=squares, not {kind}; leave data.censored out.")
    if not loss.is_count:
        return
    if train.noise or train.sigma is not None:
        raise ValueError(f"the noise of counts follows from loss={kind}; leave data.sigma out.")
    counts = train.ys[train.mask]
    if (counts < 0).any() or (counts != np.round(counts)).any():
        wrong = counts[(counts < 0) | (counts != np.round(counts))][0]
        raise ValueError(
            f"{kind} needs counts, whole numbers from 0 on, got {wrong:g}; use loss=squares with "
            "data.sigma=proportional for other positive values."
        )


def formulas_of(train: Dataset, loss: AbstractLikelihood) -> Mapping[str, NoiseFormula]:
    """Returns the formulas of fitted standard deviations; by default one constant per channel."""
    if train.noise or train.sigma is not None or loss.is_count:
        for state, formula in train.noise.items():
            if formula.is_log and (train.ys[..., train.states.index(state)] <= 0).any():
                raise ValueError(f"log-normal noise needs positive values, and {state!r} has others; use combined.")
        return train.noise
    single = len(train.states) == 1
    return {name: NoiseFormula("sigma" if single else f"sigma_{index_name(name)}") for name in train.states}


def index_name(name: str) -> str:
    """Converts a state's name so that it can be part of another name."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def first_constants(
    state: str, formula: NoiseFormula, train: Dataset, taken: set[str], constants: Mapping[str, float]
) -> dict[str, ConstantConfig]:
    """Returns initial values and bounds of the constants of a formula.

    Constants without a user-defined value are positive, and their initial values best explain the distances of rows
    from the curve through their neighbours.

    **Raises:** `ValueError` if the formula is wrong, or a user-defined constant is not in it.
    """
    names = sorted(Equations(((state, parse(state, formula.text, NOISE_TEXT) and formula.text),)).names_used())
    constant_names = [name for name in names if name not in taken and name != PREDICTION]
    wrong = [name for name in formula.constants if name not in constant_names]
    if wrong:
        raise ValueError(f"constants of the sigma of {state!r} name {wrong[0]!r}, which is not in {formula.text!r}.")
    if not constant_names:
        return {}
    column = train.states.index(state)
    ys = np.where(train.mask[..., column], train.middles[..., column], np.nan)
    distances = near_distances(train.ts, np.log(ys) if formula.is_log else ys)
    first = guess_constants(state, formula, constant_names, distances, ys, train, constants)
    return {name: cast(ConstantConfig, formula.constants.get(name, [value, 0, None])) for name, value in first.items()}


def guess_constants(
    state: str,
    formula: NoiseFormula,
    names: Sequence[str],
    off: Float[np.ndarray, "trajectory time"],
    ys: Float[np.ndarray, "trajectory time"],
    train: Dataset,
    constants: Mapping[str, float],
) -> dict[str, float]:
    """Estimates the positive constants that make distances from neighbours most likely, using measured values."""
    from scipy.optimize import minimize

    is_known = np.isfinite(off)
    spread = 1.0 if formula.is_log else float(np.nanstd(ys)) or 1.0
    level = (
        max(float(np.median(np.abs(off[is_known]))) * 1.5, 1e-3 * spread) if is_known.any() else UNKNOWN_SHARE * spread
    )
    size = max(float(np.nanmean(np.abs(ys))), 1e-30)
    start = {name: level / size if "rel" in name else 1.0 if "power" in name else level for name in names}
    others = other_names(formula, names, constants)
    if is_known.sum() < FEWEST_RESIDUALS or any(name not in train.states for name in others):
        return start
    columns = {name: jnp.asarray(np.nan_to_num(train.ys[..., i])[is_known]) for i, name in enumerate(train.states)}
    values = {**columns, PREDICTION: jnp.asarray(ys[is_known])} | {k: jnp.asarray(v) for k, v in constants.items()}
    equations = Equations(((state, formula.text),))

    def negative_log(logs: np.ndarray) -> float:
        trial = dict(zip(names, jnp.exp(jnp.asarray(logs, float)), strict=True))
        sigma = np.asarray(equations({**values, **trial})[state], np.float64)
        sigma = np.hypot(sigma, 1e-3 * level)
        total = float(np.sum((off[is_known] / sigma) ** 2 / 2 + np.log(sigma)))
        return total if math.isfinite(total) else 1e30

    begins = [np.log([start[name] for name in names])]
    if len(names) > 1:
        begins += [begins[0] - FEWER * axis for axis in np.eye(len(names))]
    ends = [np.asarray(minimize(negative_log, begin, method="Nelder-Mead", tol=NEAR_ENOUGH).x) for begin in begins]
    best = min(ends, key=negative_log)
    return {name: float(np.exp(np.clip(value, -60, 60))) for name, value in zip(names, best, strict=True)}


def other_names(formula: NoiseFormula, own: Sequence[str], constants: Mapping[str, float]) -> list[str]:
    """Returns the names in a formula other than its own constants, those of the model and the prediction."""
    used = Equations((("sigma", formula.text),)).names_used()
    return [name for name in used if name not in own and name != PREDICTION and name not in constants]
