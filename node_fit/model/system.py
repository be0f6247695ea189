"""Names of a system's states, inputs and time, and conversions between the user's units and the solver's."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.domains import Bounds, Numbers, from_line, is_inside, slope, to_line, turns_of
from ..data.events import Events, Jumps
from ..data.scaling import Scaler, columns_by_name
from ..data.trajectories import check_known_values
from ..runtime.placement import AnyArray
from ..runtime.serialization import stored_as


@stored_as("System")
class System(eqx.Module):
    """The system that a vector field, a start or an observation belongs to.

    A channel is a measured quantity. A state is a quantity that the ODE evolves. Usually all channels are states, and
    the other states are hidden, that is, not measured. Otherwise the channels are a readout of the states.

    The solver works in scaled units, in which states, inputs and time are of order one.

    **Arguments:**

    - `states`: names of all states, the measured ones first.
    - `measured`: number of measured states; 0 if the channels are a readout of the states.
    - `channels`: number of channels.
    - `inputs`, `time`: names of the inputs and of the time.
    - `scaler`: scales of all states (hidden ones included), inputs and time.
    """

    states: tuple[str, ...] = eqx.field(static=True)
    measured: int = eqx.field(static=True)
    channels: int = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True)
    time: str = eqx.field(static=True)
    scaler: Scaler

    @staticmethod
    def from_names(
        scaler: Scaler,
        channels: Sequence[str],
        hidden: int | Sequence[str],
        bounds: dict[str, Bounds],
        *,
        inputs: Sequence[str] = (),
        time: str = "t",
        readout: bool = False,
        formulas: Collection[str] | None = None,
        angles: dict[str, float] | None = None,
    ) -> "System":
        """Makes a system whose first states are the channels, or, with `readout`, whose channels are a readout.

        **Arguments:**

        - `scaler`: the scaler of the channels.
        - `channels`, `inputs`, `time`: names, as in the data.
        - `hidden`: names or number of the states in excess of the channels. With `readout`, the number can be negative.
        - `bounds`: bounds of hidden states, by name.
        - `readout`: whether the channels are a readout of the states, which are then named `z0`, `z1`, ...
        - `formulas`: the channels that are formulas of the states; the others are states.

        **Raises:** `ValueError` if a name is used twice, or no state is left.
        """
        if formulas is not None:
            return System.behind_formulas(scaler, channels, hidden, bounds, formulas, tuple(inputs), time)
        count = hidden if isinstance(hidden, int) else len(hidden)
        if count < 0 and not readout:
            raise ValueError(
                f"there can't be {count} hidden states while the measured channels are states; use observation=linear."
            )
        if len(channels) + count < 1:
            raise ValueError(f"{len(channels)} measured channels and hidden={count} leave no state; raise hidden.")
        if readout:
            states = tuple(f"z{index}" for index in range(len(channels) + count))
            blank = blank_scaler(scaler).with_hidden_states([(None, None)] * len(states))
            return System(states, 0, len(channels), tuple(inputs), time, as_jax(blank))
        extra = tuple(f"hidden{index}" for index in range(count)) if isinstance(hidden, int) else tuple(hidden)
        states = (*channels, *extra)
        duplicates = sorted({name for name in (*states, *inputs, time) if (*states, *inputs, time).count(name) > 1})
        if duplicates:
            raise ValueError(
                f"the hidden state {duplicates[0]!r} has the name of a measured channel, input or the time; rename it."
            )
        extended = scaler.with_hidden_states(
            [bounds.get(name, (None, None)) for name in extra], turns_of(extra, angles or {})
        )
        return System(states, len(channels), len(channels), tuple(inputs), time, as_jax(extended))

    @staticmethod
    def behind_formulas(
        scaler: Scaler,
        channels: Sequence[str],
        hidden: int | Sequence[str],
        bounds: dict[str, Bounds],
        formulas: Collection[str],
        inputs: tuple[str, ...],
        time: str,
    ) -> "System":
        """Makes a system with formulas for some channels; its states are the other channels and the hidden states.

        **Raises:** `ValueError` if a formula is not for a channel, hidden states have no names, or no state is left.
        """
        for name in formulas:
            if name not in channels:
                known = ", ".join(channels)
                raise ValueError(f"observation.formulas has {name!r}, which is not measured; the channels are {known}.")
            if not isinstance(hidden, int) and name in hidden:
                raise ValueError(f"observation.formulas has {name!r}, which is a hidden state, too; rename one.")
        direct = [name for name in channels if name not in formulas]
        if isinstance(hidden, int) and hidden:
            raise ValueError(f"formulas need the names of the hidden states; write hidden=[x, y], not hidden={hidden}.")
        extra = () if isinstance(hidden, int) else tuple(hidden)
        states = (*direct, *extra)
        if not states:
            raise ValueError("all channels are formulas, so name the states: hidden=[x, y].")
        new_scaler = blank_scaler(scaler).with_hidden_states([bounds.get(name, (None, None)) for name in states])
        columns = np.array([list(channels).index(name) for name in direct], int)
        shift, scale = np.array(new_scaler.state_shift), np.array(new_scaler.state_scale)
        shift[: len(direct)], scale[: len(direct)] = scaler.state_shift[columns], scaler.state_scale[columns]
        new_scaler = dataclasses.replace(new_scaler, state_shift=shift, state_scale=scale)
        # The first channels are only the first states if they precede all formulas.
        measured = len(direct) if list(channels[: len(direct)]) == direct else 0
        return System(states, measured, len(channels), inputs, time, as_jax(new_scaler))

    def in_users_units(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> tuple[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]]:
        """Converts time, states and inputs from the solver's units to the user's."""
        return convert_to_users_units(self.scaler, t, z, u)

    def in_solver_units(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> tuple[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]]:
        """Converts time, states and inputs from the user's units to the solver's; the inverse of `in_users_units`."""
        s = self.scaler
        z = (columns_by_name(to_line, y, s.bounds) - s.state_shift) / s.state_scale
        v = (columns_by_name(to_line, u, s.input_bounds) - s.input_shift) / s.input_scale
        return (t - s.time_shift) / s.time_scale, z, v

    def users_rates(self, y: Float[Array, " state"], rates: Float[Array, " state"]) -> Float[Array, " state"]:
        """Converts time derivatives from the solver's units to the user's, at states in the user's units."""
        s = self.scaler
        return rates * s.state_scale / s.time_scale / columns_by_name(slope, y, s.bounds)

    def scaled_rates(self, y: Float[Array, " state"], rates: Float[Array, " state"]) -> Float[Array, " state"]:
        """Converts time derivatives from the user's units to the solver's, at states in the user's units."""
        return convert_to_scaled_rates(self.scaler, y, rates)

    def jumps(self, events: Events) -> Jumps:
        """Converts events to scaled units, on the host.

        **Raises:** `ValueError` if a state is unknown, or a jump can take a state out of its bounds.
        """
        check_known_values("an event", events.states, self.states)
        s = self.scaler
        shape = (*events.factor.shape[:2], len(self.states))
        factor, shift = np.ones(shape), np.zeros(shape)
        for column, name in enumerate(events.states):
            index = self.states.index(name)
            bounds, scale, origin = s.bounds[index], float(s.state_scale[index]), float(s.state_shift[index])
            times, plus = on_line(events.factor[..., column], events.shift[..., column], bounds, name)
            # On the line, y = scale * z + origin.
            factor[..., index], shift[..., index] = times, ((times - 1) * origin + plus) / scale
        return Jumps(factor, shift)

    def values_by_name(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """Maps the names of the states, the inputs and the time to their values."""
        return dict(zip(self.states, y, strict=True)) | dict(zip(self.inputs, u, strict=True)) | {self.time: t}


@runtime_checkable
class Scales(Protocol):
    """The numbers of a `Scaler` that conversions of units need."""

    @property
    def state_shift(self) -> AnyArray: ...
    @property
    def state_scale(self) -> AnyArray: ...
    @property
    def input_shift(self) -> AnyArray: ...
    @property
    def input_scale(self) -> AnyArray: ...
    @property
    def time_shift(self) -> AnyArray: ...
    @property
    def time_scale(self) -> AnyArray: ...
    @property
    def bounds(self) -> tuple[Bounds, ...]: ...
    @property
    def input_bounds(self) -> tuple[Bounds, ...]: ...


def convert_to_users_units(s: Scales, t: Numbers, z: Numbers, u: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Converts as `System.in_users_units`, for arrays of any number of axes; NumPy arrays stay on the host."""
    y = columns_by_name(from_line, cast(Numbers, z * s.state_scale + s.state_shift), s.bounds)
    v = columns_by_name(from_line, cast(Numbers, u * s.input_scale + s.input_shift), s.input_bounds)
    return cast(Numbers, t * s.time_scale + s.time_shift), y, v


def convert_to_scaled_rates(s: Scales, y: Numbers, rates: Numbers) -> Numbers:
    """Converts as `System.scaled_rates`, for arrays of any number of axes; NumPy arrays stay on the host."""
    return cast(Numbers, rates * columns_by_name(slope, y, s.bounds) * s.time_scale / s.state_scale)


def on_line(factor: np.ndarray, shift: np.ndarray, bounds: Bounds, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Converts factors and shifts of a state's jumps to the real line that its bounds are mapped to.

    **Raises:** `ValueError` if a jump is not affine there, or leaves the bounds.
    """
    if bounds == (None, None):
        return factor, shift
    unchanged, sets = (factor == 1) & (shift == 0), factor == 0
    scales = (factor > 0) & (shift == 0) & ~unchanged
    logarithmic = bounds[0] == 0 and bounds[1] is None
    if not (unchanged | sets | (scales & logarithmic)).all():
        hint = "set or multiply it" if logarithmic else "set it"
        raise ValueError(
            f"an event adds to {name!r}, which is on a logarithmic scale or has bounds; {hint}, or leave data.log and "
            "data.bounds out."
        )
    if not is_inside(shift[sets], bounds).all():
        raise ValueError(f"an event sets {name!r} to a value that is not within its bounds.")
    shifts = np.zeros(factor.shape)
    shifts[sets], shifts[scales] = to_line(shift[sets], bounds), np.log(factor[scales])
    return np.where(sets, 0.0, 1.0), shifts


def as_jax(scaler: Scaler) -> Scaler:
    """Converts a scaler to JAX arrays in the run's precision, like all other numbers of a field."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), scaler)


def blank_scaler(scaler: Scaler) -> Scaler:
    """Drops the states of a scaler, and keeps its inputs and time."""
    none = np.zeros(0)
    return dataclasses.replace(
        scaler, state_shift=none, state_scale=none, bounds=(), turns=(), counted=(), trajectories=()
    )
