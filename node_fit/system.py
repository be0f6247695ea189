"""The states of a system by name, and the way between the user's units and those in which it is solved."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .bounds import Bounds, from_line, slope
from .scaling import Scaler, columns


class System(eqx.Module):
    """What a vector field, a start or an observation is made for.

    **Arguments:**

    - `states`: names of all states: those that are measured, then the hidden ones.
    - `measured`: how many of them are measured; 0 if the measured channels are a readout of the states.
    - `channels`: how many channels are measured.
    - `inputs`, `time`: names of the inputs and of the time.
    - `scaler`: of the states, the hidden ones included.
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
    ) -> "System":
        """A system whose first states are the measured channels, or whose channels are a readout of its states.

        **Arguments:**

        - `scaler`: of the channels.
        - `channels`, `inputs`, `time`: names, as in the data.
        - `hidden`: names of the states beyond as many as there are channels, or their number, which may be negative
          if the channels are a readout.
        - `bounds`: of hidden states that have some.

        **Raises:** `ValueError` if a name is used twice, or no state would be left.
        """
        count = hidden if isinstance(hidden, int) else len(hidden)
        if count < 0 and not readout:
            raise ValueError(
                f"there can't be {count} hidden states where the measured channels are states; use observation=linear."
            )
        if len(channels) + count < 1:
            raise ValueError(f"no state is left of {len(channels)} measured channels and hidden={count}; raise it.")
        if readout:
            states = tuple(f"z{index}" for index in range(len(channels) + count))
            blank = blank_scaler(scaler).extended([(None, None)] * len(states))
            return System(states, 0, len(channels), tuple(inputs), time, as_jax(blank))
        extra = tuple(f"hidden{index}" for index in range(count)) if isinstance(hidden, int) else tuple(hidden)
        states = (*channels, *extra)
        twice = sorted({name for name in (*states, *inputs, time) if (*states, *inputs, time).count(name) > 1})
        if twice:
            raise ValueError(
                f"the hidden state {twice[0]!r} has the name of a measured channel, an input or the time; rename it."
            )
        whole = scaler.extended([bounds.get(name, (None, None)) for name in extra])
        return System(states, len(channels), len(channels), tuple(inputs), time, as_jax(whole))

    def in_users_units(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> tuple[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]]:
        """Time, states and inputs in the user's units."""
        s = self.scaler
        y = columns(from_line, z * s.state_scale + s.state_shift, s.bounds)
        return t * s.time_scale + s.time_shift, y, u * s.input_scale + s.input_shift

    def scaled_rates(self, y: Float[Array, " state"], rates: Float[Array, " state"]) -> Float[Array, " state"]:
        """Time derivatives in the solver's units, from states and their derivatives in the user's."""
        s = self.scaler
        return rates * columns(slope, y, s.bounds) * s.time_scale / s.state_scale

    def named(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """Values by the names of the states, the inputs and the time."""
        return dict(zip(self.states, y, strict=True)) | dict(zip(self.inputs, u, strict=True)) | {self.time: t}


def as_jax(scaler: Scaler) -> Scaler:
    """The scaler in the run's precision, as all other numbers of a field are."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), scaler)


def blank_scaler(scaler: Scaler) -> Scaler:
    """A scaler of inputs and time with no states."""
    none = np.zeros(0)
    return Scaler(none, none, scaler.input_shift, scaler.input_scale, scaler.time_shift, scaler.time_scale, bounds=())
