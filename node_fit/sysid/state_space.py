"""State-space form of a fitted linear model: matrices in the user's units, poles and static gain."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Complex, Float

from ..data.scaling import UNBOUNDED
from ..model.ensemble import Ensemble
from ..model.fields.network import Linear
from ..model.neural_ode import NeuralODE
from ..model.observation import DirectReadout, LinearReadout, MeasuredStates
from ..runtime.serialization import Json


class Readout(NamedTuple):
    """Channels `y = c x + direct u + shift`, in the user's units."""

    c: Float[np.ndarray, "channel state"]
    direct: Float[np.ndarray, "channel input"]
    shift: Float[np.ndarray, " channel"]

    @staticmethod
    def of(model: NeuralODE) -> "Readout | None":
        """Returns the readout of a model; None if it is not linear in the user's units."""
        readout, scaler, channels = model.observation, model.system.scaler, model.scaler
        bounds = (*scaler.bounds, *scaler.input_bounds, *channels.bounds)
        if not isinstance(readout, LinearReadout | MeasuredStates) or any(bound != UNBOUNDED for bound in bounds):
            return None
        direct = np.zeros((len(model.states), len(model.inputs)))
        if not isinstance(readout, LinearReadout):
            return Readout(np.eye(len(model.states), len(model.latent)), direct, np.zeros(len(model.states)))
        scale = as_double(channels.state_scale)
        c = scale[:, None] * as_double(readout.matrix) / as_double(scaler.state_scale)
        if isinstance(readout, DirectReadout):
            direct = scale[:, None] * as_double(readout.direct) / as_double(scaler.input_scale)
        shift = scale * as_double(readout.shift) + as_double(channels.state_shift)
        return Readout(c, direct, shift - c @ as_double(scaler.state_shift) - direct @ as_double(scaler.input_shift))


@dataclass(frozen=True)
class StateSpace:
    """`dx/dt = a x + b u + rest`, `y = c x + direct u + shift`, in the user's units.

    - `states`, `inputs`, `channels`: names of `x`, `u` and `y`.
    """

    states: tuple[str, ...]
    inputs: tuple[str, ...]
    channels: tuple[str, ...]
    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    rest: Float[np.ndarray, " state"]
    c: Float[np.ndarray, "channel state"]
    direct: Float[np.ndarray, "channel input"]
    shift: Float[np.ndarray, " channel"]

    @staticmethod
    def of(model: NeuralODE | Ensemble) -> "StateSpace | None":
        """Returns the state-space form of a model; None if it is not linear in the user's units."""
        if isinstance(model, Ensemble) and model.center is None:
            return None
        one = model.typical
        field, scaler, count = one.field, one.system.scaler, len(one.latent)
        readout = Readout.of(one)
        if readout is None or not isinstance(field, Linear):
            return None
        weight, bias = as_double(field.layer.weight), as_double(field.layer.bias)
        scales, shifts = (
            np.concatenate([as_double(state), as_double(inputs)])
            for state, inputs in (
                (scaler.state_scale, scaler.input_scale),
                (scaler.state_shift, scaler.input_shift),
            )
        )
        rates = as_double(scaler.state_scale) / as_double(scaler.time_scale)
        slopes = rates[:, None] * weight / scales
        return StateSpace(
            one.latent,
            one.inputs,
            one.states,
            slopes[:, :count],
            slopes[:, count:],
            rates * bias - slopes @ shifts,
            *readout,
        )

    @property
    def poles(self) -> Complex[np.ndarray, " state"]:
        """Eigenvalues of `a` [1/time], slowest first; in a pair, the one with the positive imaginary part first."""
        poles = np.linalg.eigvals(self.a).astype(complex)
        upper = np.imag(poles)
        return poles[np.lexsort((-upper, np.abs(upper), -np.real(poles)))]

    @property
    def gain(self) -> Float[np.ndarray, "channel input"] | None:
        """Steady-state change of each channel per unit of a held input; None if not all states settle."""
        settles = bool((np.real(self.poles) < 0).all())
        return self.direct - self.c @ np.linalg.solve(self.a, self.b) if settles and self.inputs else None

    def as_dict(self) -> Json:
        """Converts the model to plain values; a pole has its time constant, period and damping, or None for each."""
        gain = self.gain
        return {
            "states": list(self.states),
            "inputs": list(self.inputs),
            "channels": list(self.channels),
            "A": self.a.tolist(),
            "B": self.b.tolist(),
            "rest": self.rest.tolist(),
            "C": self.c.tolist(),
            "D": self.direct.tolist(),
            "shift": self.shift.tolist(),
            "poles": [describe_pole(complex(pole)) for pole in self.poles],
            "gain": None if gain is None else gain.tolist(),
        }


def as_double(array: object) -> np.ndarray:
    return np.asarray(jax.device_get(array), np.float64)


def describe_pole(pole: complex) -> Json:
    """Returns a pole with its time constant `-1/real`, period `2 pi/imaginary` and damping ratio, None if undefined."""
    return {
        "real": pole.real,
        "imaginary": pole.imag,
        "time_constant": -1 / pole.real if pole.real < 0 else None,
        "period": 2 * math.pi / abs(pole.imag) if pole.imag else None,
        "damping": -pole.real / abs(pole) if pole.imag else None,
    }
