"""Observations: measured channels as functions of the states (states, linear or network readouts, formulas)."""

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
    - `is_nonlinear`: whether they are a nonlinear function of the states, so that no linear model describes them.
    """

    is_direct: ClassVar[bool] = False
    is_nonlinear: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        """Computes the channels, shape `(channel,)`, at a state, shape `(state,)`."""


class AbstractFeatureReadout(AbstractObservation):
    """An observation that is linear in the states and in features of them."""

    @abc.abstractmethod
    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """Computes the features in which the channels are linear, in addition to the states."""

    @abc.abstractmethod
    def with_readout(self, coefficients: Float[np.ndarray, "term channel"]) -> "AbstractFeatureReadout":
        """Returns the observation with new coefficients of the constant, the states, and the features."""


@stored_as("MeasuredStates")
class MeasuredStates(AbstractObservation):
    """Direct measurement: the channels are the first states; the other states are hidden.

    **Arguments:** `system`: sets the number of channels. `key`: not used.
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

    **Arguments:** `system`: sets the numbers of channels and states. `key`: not used.
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
    """A linear readout with direct feedthrough of the inputs: `channels = C state + D u + d`; `D` is initially zero.

    Use it for channels that respond to inputs at once, such as an acceleration to a force, or channels sampled at the
    instant at which a held input changes.

    **Arguments:** `system`: sets the numbers of channels, states and inputs. `key`: not used.
    """

    direct: Float[Array, "channel input"]

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        super().__init__(system)
        self.direct = jnp.zeros((system.channels, len(system.inputs)))

    def read(self, state: Float[Array, " state"], inputs: Float[Array, " input"]) -> Float[Array, " channel"]:
        """Computes the channels at states and inputs, in scaled units."""
        return self(state) + self.direct @ inputs


@stored_as("FormulaReadout")
class FormulaReadout(eqx.Module, metaclass=Part):
    """Channels that are formulas of states, inputs, the time and constants, in the user's units.

    ```python
    node_fit.FormulaReadout(formulas={"V": "ocv - R0*I - V1"}, constants={"ocv": 3.6, "R0": [0.05, 0, None]})
    ```

    A channel without a formula is a state. The other states have the names in `hidden`. Formulas can also use the
    constants of the field. `increase(x)` is the growth of `x` since the previous row, such as the cases of a week:
    `{"cases": "increase(total)"}`. A trajectory's first row has no previous row, so it does not count there.

    **Arguments:**

    - `system`: the names of states and inputs, and their scales.
    - `formulas`: formulas of the channels that are not states, see `Equations`.
    - `constants`, `local`, `groups`: for constants that only occur in formulas, as in `Known`.
    - `channels`, `known`: the names of all channels and of the field's constants; set by `make_model`.
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
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(
                f"observation.constants: {duplicates[0]!r} is a state, an input or the time, too; rename it."
            )
        try:
            self.formulas.check((*names, *known))
        except EquationError as error:
            raise of_formula(error) from None
        unused = self.constants.find_unused(self.formulas.names_used())
        if unused:
            raise ValueError(f"observation.constants names {unused[0]!r}, which occurs in no formula; leave it out.")

    def read(
        self, names: Mapping[str, Float[Array, ""]], increases: Float[Array, " increase"] | None = None
    ) -> Float[Array, " channel"]:
        """Computes the channels in the user's units.

        **Arguments:**

        - `names`: the values of states, inputs, the time and the field's constants.
        - `increases`: growth of the totals (`totals`); None for ones, in a first row.
        """
        increase_calls = self.formulas.increases
        grown = jnp.ones(len(increase_calls)) if increases is None else increases
        arguments = {**names, **self.constants.at(names)}
        values = {**names, **self.formulas(arguments, dict(zip(increase_calls, grown, strict=True)))}
        return jnp.stack([values[name] for name in self.channels])

    def totals(self, names: Mapping[str, Float[Array, ""]]) -> Float[Array, " increase"]:
        """Computes the arguments of `increase` at one time; `names` as in `read`."""
        arguments = {normalize(name): value for name, value in {**names, **self.constants.at(names)}.items()}
        dtype = jnp.result_type(float, *arguments.values())
        totals = [evaluate_term(call.arguments[0], arguments, dtype) for call in self.formulas.increases]
        return jnp.stack(totals) if totals else jnp.zeros(0, dtype)

    @property
    def counts(self) -> bool:
        """Whether a channel is counted between rows."""
        return bool(self.formulas.increases)


def as_formulas(formulas: Mapping[str, str]) -> Equations:
    """Parses formulas of channels.

    **Raises:** `ValueError` with the channel and the column.
    """
    try:
        return Equations.of(formulas, FORMULA_DIALECT)
    except EquationError as error:
        raise of_formula(error) from None


def of_formula(error: EquationError) -> ValueError:
    return ValueError(str(error).replace(EQUATION, "formula of").replace(CONSTANT_KEY, "+observation.constants."))


def counted_channels(formulas: Mapping[str, str] | None) -> frozenset[str]:
    """Returns the channels with formulas that are counted between rows."""
    trees = as_formulas(formulas).trees if formulas else {}
    return frozenset(name for name, tree in trees.items() if any(call.function == INCREASE for call in calls(tree)))


@stored_as("NetworkReadout")
class NetworkReadout(AbstractFeatureReadout):
    """A linear readout plus a network, whose output is initially zero.

    **Arguments:**

    - `system`: sets the numbers of channels and states.
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
        self.network = layers.with_zero_output()

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.linear(state) + self.network(state)

    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """Computes the network's last hidden layer."""
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
