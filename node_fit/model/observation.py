"""Observations: the measured channels as functions of the states, which are states, linear or a network."""

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.groups import Groups
from ..expressions.parsing import FORMULA_DIALECT, INCREASE
from ..expressions.tree import calls
from ..runtime.serialization import stored_as
from ..runtime.validation import Part
from .fields.equations import CONSTANT_KEY, EQUATION, EquationError, Equations, evaluate_term, normalize
from .fields.known import ConstantConfig, Constants
from .fields.network import Activation, Layers
from .system import System


class AbstractObservation(eqx.Module, metaclass=Part):
    """An observation: the measured channels as a function of the states, both in scaled units.

    A subclass is created with `(system, key=...)`.

    - `is_direct`: whether the channels are states.
    - `is_nonlinear`: whether they are no linear function of the states, so that no linear model describes them.
    """

    is_direct: ClassVar[bool] = False
    is_nonlinear: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        """The channels, shape `(channel,)`, at a state, shape `(state,)`."""


class AbstractFeatureReadout(AbstractObservation):
    """An observation that is linear in the states and in features of these."""

    @abc.abstractmethod
    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """What the channels are linear in, beside the states."""

    @abc.abstractmethod
    def with_readout(self, coefficients: Float[np.ndarray, "term channel"]) -> "AbstractFeatureReadout":
        """The observation with other coefficients: of 1, of the states, and of the features."""


@stored_as("MeasuredStates")
class MeasuredStates(AbstractObservation):
    """Direct measurement: the channels are the first states; the other states are hidden.

    **Arguments:** `system`: gives the number of channels. `key`: not used.
    """

    is_direct: ClassVar[bool] = True
    channels: int = eqx.field(static=True)

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.channels = system.channels

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return state[: self.channels]


@stored_as("LinearReadout")
class LinearReadout(AbstractObservation):
    """A linear readout `channels = C state + d`; initially, the channels are the first states.

    **Arguments:** `system`: gives the numbers of channels and states. `key`: not used.
    """

    matrix: Float[Array, "channel state"]
    shift: Float[Array, " channel"]

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.matrix = jnp.eye(system.channels, len(system.states))
        self.shift = jnp.zeros(system.channels)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.matrix @ state + self.shift


@stored_as("DirectReadout")
class DirectReadout(LinearReadout):
    """A linear readout with a direct part of the inputs: `channels = C state + D u + d`; `D` is zero at first.

    An acceleration follows a force at once, and so does what is sampled at the instant at which a held input changes.

    **Arguments:** `system`: gives the numbers of channels, states and inputs. `key`: not used.
    """

    direct: Float[Array, "channel input"]

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        super().__init__(system)
        self.direct = jnp.zeros((system.channels, len(system.inputs)))

    def read(self, state: Float[Array, " state"], inputs: Float[Array, " input"]) -> Float[Array, " channel"]:
        """The channels at states and inputs, in scaled units."""
        return self(state) + self.direct @ inputs


@stored_as("FormulaReadout")
class FormulaReadout(eqx.Module, metaclass=Part):
    """Channels that are formulas of states, inputs, the time and constants, in the user's units.

    ```python
    node_fit.FormulaReadout(formulas={"V": "ocv - R0*I - V1"}, constants={"ocv": 3.6, "R0": [0.05, 0, None]})
    ```

    A channel without a formula is a state. The other states have the names in `hidden`. Formulas may have the constants
    of the field, too. `increase(x)` is what `x` has grown by since the row before, such as the cases of a week:
    `{"cases": "increase(total)"}`. A trajectory's first row has no row before it, so it does not count there.

    **Arguments:**

    - `system`: the names of states and inputs, and their scales.
    - `formulas`: of each channel that is no state, see `Equations`.
    - `constants`, `local`, `groups`: those that are in formulas alone, as of `Known`.
    - `channels`, `known`: the names of all channels and of the field's constants, as the model's maker knows them.
    - `key`: not used.

    **Raises:** `ValueError` if a name in a formula is unknown.
    """

    is_nonlinear: ClassVar[bool] = True
    formulas: Equations
    constants: Constants
    channels: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        system: System,
        *,
        formulas: Mapping[str, str],
        constants: Mapping[str, ConstantConfig] = MappingProxyType({}),
        local: Mapping[str, str] = MappingProxyType({}),
        groups: Mapping[str, Groups] = MappingProxyType({}),
        channels: Sequence[str] = (),
        known: Sequence[str] = (),
        key: PRNGKeyArray | None = None,
    ):
        self.formulas, self.constants, self.channels = (
            as_formulas(formulas),
            Constants.of(constants, local, groups),
            tuple(channels),
        )
        names = (*system.states, *system.inputs, system.time, *self.constants.symbols)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"observation.constants: {twice[0]!r} is a state, an input or the time, too; rename it.")
        try:
            self.formulas.check((*names, *known))
        except EquationError as error:
            raise of_formula(error) from None
        unused = self.constants.unused(self.formulas.names_used())
        if unused:
            raise ValueError(f"observation.constants names {unused[0]!r}, which occurs in no formula; leave it out.")

    def read(
        self, names: Mapping[str, Float[Array, ""]], increases: Float[Array, " increase"] | None = None
    ) -> Float[Array, " channel"]:
        """The channels in the user's units.

        **Arguments:**

        - `names`: the values of states, inputs, the time and the field's constants.
        - `increases`: what the totals (`totals`) have grown by; None for 1 of each, where there is no row before.
        """
        asked = self.formulas.increases
        grown = jnp.ones(len(asked)) if increases is None else increases
        given = {**names, **self.constants.at(names)}
        values = {**names, **self.formulas(given, dict(zip(asked, grown, strict=True)))}
        return jnp.stack([values[name] for name in self.channels])

    def totals(self, names: Mapping[str, Float[Array, ""]]) -> Float[Array, " increase"]:
        """The arguments of `increase` at one moment; `names` as in `read`."""
        given = {normalize(name): value for name, value in {**names, **self.constants.at(names)}.items()}
        dtype = jnp.result_type(float, *given.values())
        each = [evaluate_term(call.arguments[0], given, dtype) for call in self.formulas.increases]
        return jnp.stack(each) if each else jnp.zeros(0, dtype)

    @property
    def counts(self) -> bool:
        """Whether a channel is counted between rows."""
        return bool(self.formulas.increases)


def as_formulas(formulas: Mapping[str, str]) -> Equations:
    """Formulas of channels from their texts.

    **Raises:** `ValueError` that names the channel and the column.
    """
    try:
        return Equations.of(formulas, FORMULA_DIALECT)
    except EquationError as error:
        raise of_formula(error) from None


def of_formula(error: EquationError) -> ValueError:
    return ValueError(str(error).replace(EQUATION, "formula of").replace(CONSTANT_KEY, "+observation.constants."))


def counted_channels(formulas: Mapping[str, str] | None) -> frozenset[str]:
    """The channels that are counted between rows, of those that are formulas."""
    trees = as_formulas(formulas).trees if formulas else {}
    return frozenset(name for name, tree in trees.items() if any(call.function == INCREASE for call in calls(tree)))


@stored_as("NetworkReadout")
class NetworkReadout(AbstractFeatureReadout):
    """A linear readout plus a network, whose output is zero at first.

    **Arguments:**

    - `system`: gives the numbers of channels and states.
    - `width`, `depth`, `activation`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.
    """

    is_nonlinear: ClassVar[bool] = True
    linear: LinearReadout
    network: Layers

    def __init__(
        self,
        system: System,
        *,
        width: int = 16,
        depth: int = 1,
        activation: Activation = "tanh",
        key: PRNGKeyArray,
    ):
        self.linear = LinearReadout(system)
        states, channels = len(system.states), system.channels
        layers = Layers(states, channels, width=width, depth=depth, activation=activation, key=key)
        self.network = layers.silenced()

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.linear(state) + self.network(state)

    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """The network's last hidden layer."""
        last = self.network.layers[-1]
        hidden = eqx.tree_at(
            lambda n: (n.layers[-1].weight, n.layers[-1].bias),
            self.network,
            (jnp.eye(last.in_features), jnp.zeros(last.in_features)),
        )
        return hidden(state)

    def with_readout(self, coefficients: Float[np.ndarray, "term channel"]) -> "NetworkReadout":
        matrix = self.linear.matrix
        shift, states, hidden = np.split(coefficients, [1, 1 + matrix.shape[1]])
        return eqx.tree_at(
            lambda o: (o.linear.shift, o.linear.matrix, o.network.layers[-1].weight),
            self,
            tuple(jnp.asarray(x, matrix.dtype) for x in (shift[0], states.T, hidden.T)),
        )


Observation = AbstractObservation | FormulaReadout
