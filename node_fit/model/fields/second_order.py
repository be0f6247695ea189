"""A second-order vector field: a network gives the accelerations of the positions."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..system import System
from .field import AbstractVectorField
from .mlp import Activation, Layers, angles_after, make_layers


@stored_as("SecondOrder")
class SecondOrder(AbstractVectorField):
    """`dq/dt = v`, `dv/dt = MLP(q, v, u)`: the first half of the states are positions, the second half velocities.

    Measured velocities come after the positions, in the same order, and `dq/dt = v` holds in the user's units.
    Velocities that are not measured are hidden states, one for each position (`hidden=1` for one position).

    **Arguments:**

    - `system`: names and units of the states, inputs and time.
    - `width`, `depth`, `activation`, `time`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` unless there are as many velocities as positions.
    """

    network: Layers
    system: System
    time: bool = eqx.field(static=True)

    def __init__(
        self,
        system: System,
        *,
        width: int = 64,
        depth: int = 2,
        activation: Activation = "tanh",
        time: bool = False,
        key: PRNGKeyArray,
    ):
        states = len(system.states)
        half = states // 2
        if states % 2 or system.measured not in (0, half, states):
            raise ValueError(
                f"a second-order field needs as many velocities as positions, but {system.measured} of the {states} "
                f"states {', '.join(system.states)} are measured; if these are positions, set "
                f"hidden={system.measured}."
            )
        self.network = make_layers(
            int(time) + states + len(system.inputs),
            half,
            system.scaler,
            angles_after(int(time), system.scaler),
            width=width,
            depth=depth,
            activation=activation,
            key=key,
        )
        self.system = system
        self.time = time

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        half = y.shape[0] // 2
        acceleration = self.network(jnp.concatenate([jnp.atleast_1d(t), y, u] if self.time else [y, u]))
        return jnp.concatenate([self.velocities(t, y, u, half), acceleration])

    def velocities(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"], half: int
    ) -> Float[Array, " position"]:
        if self.system.measured < y.shape[0]:
            return y[half:]  # Hidden velocities have no units other than the solver's.
        _, states, _ = self.system.in_users_units(t, y, u)
        velocities = jnp.concatenate([states[half:], jnp.zeros_like(states[half:])])
        return self.system.scaled_rates(states, velocities)[:half]
