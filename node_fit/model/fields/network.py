"""Fields without equations: linear, multilayer perceptrons of first or second order, and polynomials."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ...data.scaling import Scaler
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ..system import System
from .field import AbstractVectorField


@stored_as("Linear")
class Linear(AbstractVectorField):
    """`dy/dt = A y + B u + c`.

    **Arguments:**

    - `states`, `inputs`: sizes of `y` and `u`, set from the data.
    - `key`: PRNG key of the initial coefficients.
    """

    has_linear_part: ClassVar[bool] = True
    is_linear: ClassVar[bool] = True
    has_network: ClassVar[bool] = False
    layer: eqx.nn.Linear

    def __init__(self, states: int, inputs: int = 0, *, key: PRNGKeyArray):
        self.layer = eqx.nn.Linear(states + inputs, states, key=key)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        return self.layer(jnp.concatenate([y, u]))

    @property
    def linear_part(self) -> "Linear":
        return self

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """Returns the coefficients of variables and the constant by exponents of states and inputs.

        They are in scaled units, with shape `(state,)`.
        """
        weight, bias = (np.asarray(jax.device_get(array), np.float64) for array in (self.layer.weight, self.layer.bias))
        count = weight.shape[1]
        result = {tuple(int(place == index) for index in range(count)): weight[:, place] for place in range(count)}
        return result | {(0,) * count: bias}


Activation = Literal["tanh", "softplus", "silu", "gelu", "relu", "sin"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "sin": jnp.sin,
}


@stored_as("Layers")
class Layers(eqx.Module):
    """A multilayer perceptron.

    **Arguments:**

    - `inputs`, `outputs`: sizes of the input and the output.
    - `width`, `depth`, `activation`, `key`: as in `MLP`.
    """

    layers: tuple[eqx.nn.Linear, ...]
    activation: str = eqx.field(static=True)

    @checks_arguments
    def __init__(self, inputs: int, outputs: int, *, width: int, depth: int, activation: Activation, key: PRNGKeyArray):
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}.")
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}.")
        self.layers = initial_layers((inputs, *(width,) * depth, outputs), key)
        self.activation = activation

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)

    def with_zero_output(self) -> "Layers":
        """Returns the layers with zeros in the last one, for a correction that is initially zero."""
        return eqx.tree_at(lambda s: s.layers[-1], self, replace_fn=lambda last: jax.tree.map(jnp.zeros_like, last))


@stored_as("AngularLayers")
class AngularLayers(Layers):
    """Layers that take the sine and cosine of angles instead of their scaled values.

    **Arguments:**

    - `inputs`, `outputs`, `options`: as in `Layers`.
    - `scaler`: scaler of all states.
    - `angles`: maps positions of angles among the inputs to the indices of their states.
    """

    scaler: Scaler
    angles: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, *, scaler: Scaler, angles: Mapping[int, int], **options: Any):
        super().__init__(inputs + len(angles), outputs, **options)
        self.scaler = scaler
        self.angles = tuple(angles.items())

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        places, states = map(np.array, zip(*self.angles, strict=True))
        turns = jnp.asarray([self.scaler.turns[state] for state in states], x.dtype)
        phases = (x[places] * self.scaler.state_scale[states] + self.scaler.state_shift[states]) * (2 * jnp.pi / turns)
        others = np.setdiff1d(np.arange(x.shape[0]), places)
        return super().__call__(jnp.concatenate([x[others], jnp.sin(phases), jnp.cos(phases)]))


def make_layers(inputs: int, outputs: int, scaler: Scaler | None, angles: Mapping[int, int], **options: Any) -> Layers:
    """Makes layers that take angles, if any, as sine and cosine; arguments as in `AngularLayers`."""
    if scaler is None or not angles:
        return Layers(inputs, outputs, **options)
    return AngularLayers(inputs, outputs, scaler=scaler, angles=angles, **options)


def angles_after(offset: int, scaler: Scaler | None) -> dict[int, int]:
    """Maps positions of angles in a list of `offset` numbers and all states to the indices of their states."""
    turns = () if scaler is None else scaler.turns
    return {offset + state: state for state, turn in enumerate(turns) if turn}


@eqx.filter_jit
def initial_layers(sizes: tuple[int, ...], key: PRNGKeyArray) -> tuple[eqx.nn.Linear, ...]:
    """Draws the initial weights of Equinox's layers all at once, since a separate draw takes 0.1 s to compile.

    A number depends only on its key and position, so a long draw begins with the numbers of a short one.
    """
    shapes = [(n, m) for m, n in itertools.pairwise(sizes)]
    keys = jax.vmap(jax.random.split)(jax.random.split(key, len(shapes)))
    limits, most = jnp.asarray([1 / math.sqrt(m) for _, m in shapes]), max(m * n for m, n in shapes)
    draw = jax.vmap(lambda k, limit: jax.random.uniform(k, (most,), minval=-limit, maxval=limit))
    weights, biases = (draw(keys[:, which], limits) for which in (0, 1))
    return tuple(
        eqx.tree_at(
            lambda layer: (layer.weight, layer.bias),
            eqx.filter_eval_shape(eqx.nn.Linear, m, n, key=key),
            (weight[: m * n].reshape(n, m), bias[:n]),
        )
        for (n, m), weight, bias in zip(shapes, weights, biases, strict=True)
    )


@stored_as("MLP")
class MLP(AbstractVectorField):
    """`dy/dt = MLP(y, u)`, or `MLP(t, y, u)`; or `A y + B u + c + MLP(y, u)`.

    **Arguments:**

    - `states`, `inputs`: sizes of `y` and `u`, set from the data.
    - `width`: units in each hidden layer; if None 64, or 16 with a linear path.
    - `depth`: number of hidden layers; if None 2, or 1 with a linear path.
    - `activation`: `tanh` (smooth, and on a CPU several times cheaper than `softplus`), `softplus`, `silu`, `gelu`,
      `relu` or `sin`.
    - `time`: whether the field depends on time.
    - `linear`: whether to add a linear path to the network, which is then initially zero. In `fit`, None adds one if
      the fit begins with a linear model.
    - `angles`: the scaler of the states, if some are angles; the network takes their sine and cosine. Set by `fit`.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` if a size is out of range or the activation is unknown.
    """

    has_linear_part: ClassVar[bool] = True
    network: Layers
    path: Linear | None
    time: bool = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        states: int,
        inputs: int = 0,
        *,
        width: int | None = None,
        depth: int | None = None,
        activation: Activation = "tanh",
        time: bool = False,
        linear: bool | None = None,
        angles: Scaler | None = None,
        key: PRNGKeyArray,
    ):
        width = (16 if linear else 64) if width is None else width
        depth = (1 if linear else 2) if depth is None else depth
        if linear and angles is not None:
            raise ValueError("linear=true does not go with angles, which are not linear; leave linear out.")
        network = make_layers(
            int(time) + states + inputs,
            states,
            angles,
            angles_after(int(time), angles),
            width=width,
            depth=depth,
            activation=activation,
            key=key,
        )
        self.network = network.with_zero_output() if linear else network
        self.path = Linear(states, inputs, key=jax.random.fold_in(key, 1)) if linear else None
        self.time = time

    @property
    def prior_part(self) -> PyTree:
        """The parameters with a prior around 0, which exclude the linear path."""
        return self.network

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        rates = self.network(jnp.concatenate([jnp.atleast_1d(t), y, u] if self.time else [y, u]))
        return rates if self.path is None else rates + self.path(t, y, u)

    @property
    def linear_part(self) -> Linear | None:
        return self.path


# Scale of `LogTimeMLP`'s logarithmic time, so that its network's input is of order one over many decades.
LOG_TIMES = 4.0


@stored_as("LogTimeMLP")
class LogTimeMLP(AbstractVectorField):
    """`dy/ds = MLP(s, y, u)` with the logarithm of time `s`, for records that span decades of time.

    Rates that differ by decades are of order one in `s = log(1 + t / shortest)`, whatever the stiffness, so explicit
    steps are sufficient. The field depends on the time since the beginning of the training data.

    **Arguments:**

    - `system`: scales of the time, states and inputs.
    - `shortest`: the shortest relevant interval [unit of time], such as the shortest between two rows.
    - `width`, `depth`, `activation`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` if `shortest` is not positive.
    """

    network: Layers
    shortest: float = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        system: System,
        *,
        shortest: float,
        width: int = 32,
        depth: int = 2,
        activation: Activation = "tanh",
        key: PRNGKeyArray,
    ):
        if not (math.isfinite(shortest) and shortest > 0):
            raise ValueError(f"shortest must be positive, the shortest interval that matters, got {shortest}.")
        states = len(system.states)
        self.network = make_layers(
            1 + states + len(system.inputs),
            states,
            system.scaler,
            angles_after(1, system.scaler),
            width=width,
            depth=depth,
            activation=activation,
            key=key,
        )
        self.shortest = shortest / float(system.scaler.time_scale)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        since = jnp.maximum(t, 0)
        s = jnp.log1p(since / self.shortest) / LOG_TIMES
        return self.network(jnp.concatenate([jnp.atleast_1d(s), y, u])) / (LOG_TIMES * (since + self.shortest))


@stored_as("SecondOrder")
class SecondOrder(AbstractVectorField):
    """`dq/dt = v`, `dv/dt = MLP(q, v, u)`: the first half of the states are positions, the second half velocities.

    Measured velocities come after the positions, in the same order, and `dq/dt = v` holds in the user's units.
    Velocities that are not measured are hidden states, one for each position (`hidden=1` for one position).

    **Arguments:**

    - `system`: names and units of the states, inputs and time.
    - `width`, `depth`, `activation`, `time`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` unless the numbers of velocities and positions are equal.
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

    @property
    def hides_velocities(self) -> bool:
        """Whether the positions alone are measured, so that velocities are their derivatives in scaled units."""
        return self.system.measured == len(self.system.states) // 2

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
            return y[half:]  # Hidden velocities are always in the solver's units.
        _, states, _ = self.system.in_users_units(t, y, u)
        velocities = jnp.concatenate([states[half:], jnp.zeros_like(states[half:])])
        return self.system.scaled_rates(states, velocities)[:half]


HIGHEST_DEGREE, MOST_TERMS = 7, 1000


@stored_as("Polynomial")
class Polynomial(AbstractVectorField):
    """`dy/dt = A y + B u + c + P m(y, u)`, where `m` are the monomials of degree 2 and higher.

    It is smooth and needs few parameters for few states, but grows fast outside the range of the data. The monomials
    are those of states and inputs in scaled units, and their coefficients are initially zero.

    **Arguments:**

    - `states`, `inputs`: sizes of `y` and `u`, set from the data.
    - `degree`: the highest degree of a monomial.
    - `key`: PRNG key of the initial linear coefficients.

    **Raises:** `ValueError` if the degree is out of range, or leads to more than 1,000 monomials.
    """

    has_linear_part: ClassVar[bool] = True
    is_polynomial: ClassVar[bool] = True
    has_network: ClassVar[bool] = False
    weight: Float[Array, "state term"]
    path: Linear
    # Indices of the variables of each monomial, with repetition; the last index stands for a factor of one.
    factors: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @checks_arguments
    def __init__(self, states: int, inputs: int = 0, *, degree: int = 3, key: PRNGKeyArray):
        if not 2 <= degree <= HIGHEST_DEGREE:
            raise ValueError(f"degree must be from 2 to {HIGHEST_DEGREE}, got {degree}; field=linear is of degree 1.")
        count = states + inputs
        terms = math.comb(count + degree, degree) - count - 1
        if terms > MOST_TERMS:
            raise ValueError(
                f"a polynomial of degree {degree} in {count} states and inputs has {terms:,} monomials, over "
                f"{MOST_TERMS:,}; take a lower degree, or field=mlp."
            )
        self.factors = tuple(
            (*powers, *(count,) * (degree - size))
            for size in range(2, degree + 1)
            for powers in itertools.combinations_with_replacement(range(count), size)
        )
        self.weight = jnp.zeros((states, terms))
        self.path = Linear(states, inputs, key=key)

    @property
    def prior_part(self) -> PyTree:
        """The parameters with a prior around 0, which exclude the linear path."""
        return self.weight

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        variables = jnp.concatenate([y, u, jnp.ones((1,), y.dtype)])
        columns = np.asarray(self.factors).T
        monomials = variables[columns[0]]
        for column in columns[1:]:
            monomials = monomials * variables[column]
        return self.path(t, y, u) + self.weight @ monomials

    @property
    def linear_part(self) -> Linear:
        return self.path

    @property
    def exponents(self) -> list[tuple[int, ...]]:
        """The exponents of states and inputs in each monomial."""
        variables = range(int(self.path.layer.in_features))
        return [tuple(powers.count(variable) for variable in variables) for powers in self.factors]

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """Returns coefficients of monomials by exponents of states and inputs; in scaled units, shape `(state,)`."""
        weight = np.asarray(jax.device_get(self.weight), np.float64)
        return self.path.coefficients() | {powers: weight[:, term] for term, powers in enumerate(self.exponents)}
