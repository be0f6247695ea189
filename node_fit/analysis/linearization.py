"""Linearization of a model near an operating point: modes, step responses and frequency responses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from ..data.domains import from_line
from ..data.scaling import columns_by_name
from ..data.trajectories import check_known_values
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, scope

if TYPE_CHECKING:
    import pandas
    from scipy.signal import StateSpace as StateSpaceModel

# Real parts below this share of the largest eigenvalue count as zero.
NEGLIGIBLE_GROWTH = 1e-6
# Duration of a step response, in slowest time constants or in longest periods.
SETTLING, SHOWN_PERIODS = 5.0, 5.0
# Frequency range beyond the modes [decades], and numbers of frequencies and times of responses.
DECADES_BEYOND, RESPONSE_FREQUENCIES, RESPONSE_TIMES = 2.0, 400, 400
# Drop of the gain below its static value at the end of the bandwidth [dB].
BANDWIDTH_DB = 3.0


class Mode(NamedTuple):
    """An eigenvalue [per unit of time]; of a pair, the one with a positive imaginary part.

    - `time_constant`: time of growth or decay by a factor of e [unit of time]; infinite if it does neither.
    - `natural_frequency`: the modulus of the eigenvalue [radians per unit of time].
    - `damping`: the damping ratio, 1 for a real eigenvalue that decays, -1 for one that grows.
    """

    eigenvalue: complex
    time_constant: float
    natural_frequency: float
    damping: float


class StepResponse(NamedTuple):
    """Channels after a unit step of an input, as differences from the operating point.

    - `input`: the name of the input; `channels`: names.
    - `ts`: times after the step, shape `(time,)`; `ys`: shape `(time, channel)`.
    """

    input: str
    channels: tuple[str, ...]
    ts: Float[np.ndarray, " time"]
    ys: Float[np.ndarray, "time channel"]

    def to_frame(self) -> "pandas.DataFrame":
        """Returns a `pandas.DataFrame` with the time and a column for each channel."""
        import pandas as pd

        return pd.DataFrame({"time": self.ts} | dict(zip(self.channels, self.ys.T, strict=True)))


class FrequencyResponse(NamedTuple):
    """The transfer functions from inputs to channels along the imaginary axis, as in a Bode diagram.

    - `channels`, `inputs`: names.
    - `frequencies`: angular frequencies [radians per unit of time], shape `(frequency,)`.
    - `response`: complex gains, shape `(frequency, channel, input)`.
    """

    channels: tuple[str, ...]
    inputs: tuple[str, ...]
    frequencies: Float[np.ndarray, " frequency"]
    response: NDArray[np.complex128]

    @property
    def magnitude(self) -> Float[np.ndarray, "frequency channel input"]:
        """The gains [dB]."""
        return 20 * np.log10(np.maximum(np.abs(self.response), np.finfo(float).tiny))

    @property
    def phase(self) -> Float[np.ndarray, "frequency channel input"]:
        """The phases without jumps [degrees]."""
        return np.degrees(np.unwrap(np.angle(self.response), axis=0))

    def bandwidth(self, channel: str, input: str) -> float:
        """Returns the first frequency with a gain 3 dB below that at the lowest one; NaN if the gain stays above."""
        gain = self.magnitude[:, self.channels.index(channel), self.inputs.index(input)]
        below = np.flatnonzero(gain < gain[0] - BANDWIDTH_DB)
        return float(self.frequencies[below[0]]) if below.size else math.nan

    def to_frame(self) -> "pandas.DataFrame":
        """Returns a `pandas.DataFrame` of gains [dB] and phases [degrees] by frequency, channel and input."""
        import pandas as pd

        count = len(self.frequencies)
        parts = [
            pd.DataFrame(
                {
                    "frequency": self.frequencies,
                    "input": [source] * count,
                    "channel": [channel] * count,
                    "magnitude_db": self.magnitude[:, row, column],
                    "phase_deg": self.phase[:, row, column],
                }
            )
            for column, source in enumerate(self.inputs)
            for row, channel in enumerate(self.channels)
        ]
        return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True, repr=False)
class Linearization:
    """A model near an operating point: `d(y - point)/dt = rates + A (y - point) + B (u - inputs)`, in the user's units.

    Channels move by `C (y - point) + D (u - inputs)`. Hidden states are in the units of the model.

    **Arguments:**

    - `point`, `inputs`: the states and inputs of the operating point, by name.
    - `channels`: names of the measured channels.
    - `rates`: the vector field at the point, shape `(state,)`; zero at an equilibrium.
    - `a`, `b`, `c`, `d`: the matrices, shapes `(state, state)`, `(state, input)`, `(channel, state)` and `(channel,
      input)`.
    - `unit`: the unit of time, if known.
    """

    point: dict[str, float]
    inputs: dict[str, float]
    channels: tuple[str, ...]
    rates: Float[np.ndarray, " state"]
    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    c: Float[np.ndarray, "channel state"]
    d: Float[np.ndarray, "channel input"]
    unit: str | None = None

    @cached_property
    def eigenvalues(self) -> NDArray[np.complex128]:
        """The eigenvalues of `A`, the slowest first [per unit of time], shape `(state,)`."""
        values = np.asarray(np.linalg.eigvals(self.a), np.complex128)
        return values[np.lexsort((values.imag, np.abs(values)))]

    @property
    def modes(self) -> list[Mode]:
        """The modes, the slowest first; one for each pair of complex eigenvalues."""
        return [describe_mode(complex(value)) for value in self.eigenvalues if value.imag >= 0]

    @property
    def is_stable(self) -> bool:
        """Whether all modes decay."""
        return bool((self.eigenvalues.real < -self.negligible).all())

    @property
    def negligible(self) -> float:
        """Magnitude below which the real part of an eigenvalue counts as zero."""
        return NEGLIGIBLE_GROWTH * float(np.abs(self.eigenvalues).max(initial=0.0))

    @property
    def kind(self) -> str:
        """The type of the point by its eigenvalues: a stable or unstable node or focus, a saddle, or a centre."""
        real, turns = self.eigenvalues.real, bool((np.abs(self.eigenvalues.imag) > self.negligible).any())
        if (np.abs(real) <= self.negligible).any():
            return "centre" if turns and (np.abs(real) <= self.negligible).all() else "degenerate"
        if (real > 0).any() and (real < 0).any():
            return "saddle"
        return f"{'stable' if real[0] < 0 else 'unstable'} {'focus' if turns else 'node'}"

    @property
    def state_space(self) -> "StateSpaceModel":
        """The linear system as a `scipy.signal.StateSpace`."""
        from scipy.signal import StateSpace

        return StateSpace(self.a, self.b, self.c, self.d)

    def step_response(self, input: str | None = None, ts: Sequence[float] | np.ndarray | None = None) -> StepResponse:
        """Simulates the channels after a unit step of an input.

        **Arguments:** `input`: its name; the first if absent. `ts`: times after the step, evenly spaced from 0; by
        default five of the slowest time constants.

        **Raises:** `ValueError` for an unknown input.
        """
        from scipy.signal import StateSpace, step

        name = self.input_named(input)
        column = list(self.inputs).index(name)
        times = np.linspace(0.0, self.duration, RESPONSE_TIMES) if ts is None else np.asarray(ts, float)
        system = StateSpace(self.a, self.b[:, [column]], self.c, self.d[:, [column]])
        _, ys = step(system, T=times)
        return StepResponse(name, self.channels, times, np.reshape(ys, (len(times), len(self.channels))))

    def frequency_response(self, frequencies: Sequence[float] | np.ndarray | None = None) -> FrequencyResponse:
        """Computes the transfer functions `C (iω - A)⁻¹ B + D` of all inputs to all channels.

        **Arguments:** `frequencies`: angular frequencies ω [radians per unit of time]; by default from two decades
        below the slowest mode to two above the fastest.

        **Raises:** `ValueError` if the model has no inputs.
        """
        self.input_named(None)
        omegas = self.frequencies if frequencies is None else np.asarray(frequencies, float)
        eye = np.eye(len(self.a))
        solved = np.linalg.solve(
            1j * omegas[:, None, None] * eye - self.a, np.broadcast_to(self.b, (len(omegas), *self.b.shape))
        )
        gains = np.asarray(self.c @ solved + self.d, np.complex128)
        return FrequencyResponse(self.channels, tuple(self.inputs), omegas, gains)

    def input_named(self, name: str | None) -> str:
        if not self.inputs:
            raise ValueError("the model has no inputs, so it responds to none; name inputs of the data (data.inputs).")
        if name is not None:
            check_known_values("input", [name], list(self.inputs), "an input")
        return name or next(iter(self.inputs))

    @property
    def duration(self) -> float:
        """The duration of a step response [unit of time]."""
        constants = [mode.time_constant for mode in self.modes if math.isfinite(mode.time_constant)]
        periods = [2 * math.pi / abs(mode.eigenvalue.imag) for mode in self.modes if mode.eigenvalue.imag]
        return max(
            [SETTLING * constant for constant in constants] or [SHOWN_PERIODS * period for period in periods] or [1.0]
        )

    @property
    def frequencies(self) -> Float[np.ndarray, " frequency"]:
        """The angular frequencies of a response, around those of the modes [radians per unit of time]."""
        sizes = [mode.natural_frequency for mode in self.modes if mode.natural_frequency > 0] or [1.0]
        ends = math.log10(min(sizes)) - DECADES_BEYOND, math.log10(max(sizes)) + DECADES_BEYOND
        return np.logspace(*ends, RESPONSE_FREQUENCIES)

    def __str__(self) -> str:
        per = f" {self.unit}" if self.unit else ""
        where = ", ".join(f"{name} = {value:.5g}" for name, value in (self.point | self.inputs).items())
        lines = [f"{self.kind} at {where}"]
        for mode in self.modes:
            value = mode.eigenvalue
            pair = f"{value.real:.4g} ± {value.imag:.4g}i" if value.imag else f"{value.real:.4g}"
            text = f"  eigenvalue {pair}: time constant {mode.time_constant:.4g}{per}"
            if value.imag:
                text += f", natural frequency {mode.natural_frequency:.4g} rad{f'/{self.unit}' if self.unit else ''}"
                text += f", damping {mode.damping:.3g}"
            lines.append(text)
        return "\n".join(lines)

    __repr__ = __str__


def describe_mode(eigenvalue: complex) -> Mode:
    """Returns the mode of an eigenvalue."""
    size = abs(eigenvalue)
    time = 1 / abs(eigenvalue.real) if eigenvalue.real else math.inf
    return Mode(eigenvalue, time, size, -eigenvalue.real / size if size else 0.0)


def linearize_near(
    model: NeuralODE,
    at: Mapping[str, float] | None = None,
    u: Mapping[str, float] | None = None,
    t: float | None = None,
) -> Linearization:
    """Linearizes a model near a point.

    **Arguments:**

    - `model`: the model of a fit, or a loaded one.
    - `at`: states by name [in their units]; absent ones have their typical values in the training data.
    - `u`: inputs by name, likewise.
    - `t`: the time, for a field that depends on it; the beginning of the training data if absent.

    **Raises:** `ValueError` for an unknown state or input.
    """
    check_known_values("at", at or (), model.latent)
    check_known_values("u", u or (), model.inputs, "an input")
    with scope("x64"):
        exact: NeuralODE = carry(model, np.float64)
        time, z, v = scaled_point(exact, at or {}, u or {}, t)
        return linearize_at(exact, time, z, v)


def scaled_point(
    model: NeuralODE, at: Mapping[str, float], u: Mapping[str, float], t: float | None
) -> tuple[Array, Array, Array]:
    """Returns a time, states and inputs in the solver's units; typical ones by default."""
    zeros = jnp.zeros(len(model.latent)), jnp.zeros(len(model.inputs))
    time, y, v = model.system.in_users_units(jnp.zeros(()), *zeros)
    y = jnp.array([at.get(name, value) for name, value in zip(model.latent, y.tolist(), strict=True)], float)
    v = jnp.array([u.get(name, value) for name, value in zip(model.inputs, v.tolist(), strict=True)], float)
    return model.system.in_solver_units(time if t is None else jnp.asarray(t, float), y, v)


def linearize_at(model: NeuralODE, t: Array, z: Array, v: Array) -> Linearization:
    """Linearizes a model in double precision near a point in the solver's units."""
    time, y, u = model.system.in_users_units(t, z, v)
    rates, a, b, c, d = (np.asarray(array, np.float64) for array in differentiate(model, time, y, u))
    points = dict(zip(model.latent, y.tolist(), strict=True)), dict(zip(model.inputs, u.tolist(), strict=True))
    return Linearization(*points, model.states, rates, a, b, c, d, dict(model.units).get(model.system.time))


@eqx.filter_jit
def differentiate(model: NeuralODE, t: Array, y: Array, u: Array) -> tuple[Array, ...]:
    """Returns the vector field at a point, its derivatives and those of the channels, in the user's units."""
    a, b = jax.jacfwd(model.vector_field, argnums=(1, 2))(t, y, u)

    def channels(y: Array, u: Array) -> Array:
        return users_channels(model, t, y, u)

    c, d = jax.jacfwd(channels, argnums=(0, 1))(y, u)
    return model.vector_field(t, y, u), a, b, c, d


def users_channels(model: NeuralODE, t: Array, y: Array, u: Array) -> Float[Array, " channel"]:
    """Returns the measured channels in the user's units."""
    scaler = model.scaler
    zs = model.channels(*model.system.in_solver_units(t, y, u))
    return columns_by_name(
        from_line, zs * jnp.asarray(scaler.state_scale) + jnp.asarray(scaler.state_shift), scaler.bounds
    )
