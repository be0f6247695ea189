"""Known equations with a network for their unknown part."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.serialization import stored_as
from ..system import System
from .equations import check_symbol
from .field import AbstractVectorField
from .known import ConstantConfig, Known, Trigger
from .network import Activation, Layers, make_layers


@stored_as("Hybrid")
class Hybrid(AbstractVectorField):
    """Known equations with a network for unknown terms in them, or for a remainder that is added to the derivatives.

    The network gets scaled inputs, which are of order one. Its output is zero at first, so the first simulation is that
    of the equations.

    **Arguments:**

    - `system`, `equations`, `constants`: as in `Known`.
    - `terms`: names in the equations that the network provides, each with its typical magnitude in the user's units.
    - `rest`: whether the network adds a remainder to the derivatives, or the names of the states whose derivatives it
      adds to. By default, it does so if there are no terms.
    - `sees`: names of the network's inputs: states, inputs, or the time; by default all states and inputs.
    - `width`, `depth`, `activation`: network options, as in `MLP`.
    - `triggers`: as in `Known`.
    - `key`: PRNG key of the initial weights.
    """

    known: Known
    network: Layers
    terms: tuple[tuple[str, float], ...] = eqx.field(static=True)
    rest: tuple[int, ...] = eqx.field(static=True)
    sees: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        system: System,
        *,
        equations: Mapping[str, str] | str | Path,
        constants: Mapping[str, ConstantConfig] = MappingProxyType({}),
        terms: Mapping[str, float] | None = None,
        rest: bool | Sequence[str] | None = None,
        width: int = 32,
        depth: int = 2,
        activation: Activation = "tanh",
        sees: Sequence[str] | None = None,
        triggers: Sequence[Mapping[str, Any]] = (),
        key: PRNGKeyArray,
    ):
        terms = dict(terms or {})
        for name in terms:
            check_symbol(name, "term")
        self.known = Known(system, equations=equations, constants=constants, terms=tuple(terms), triggers=triggers)
        unused = sorted(set(terms) - self.known.equations.names_used())
        if unused:
            raise ValueError(f"terms names {unused[0]!r}, which occurs in no equation.")
        self.terms = tuple((name, float(size)) for name, size in terms.items())
        self.rest = corrected_states(system, not terms if rest is None else rest)
        self.sees = input_names(system, sees)
        outputs = len(self.terms) + len(self.rest)
        if outputs == 0:
            raise ValueError("rest and terms leave the network without outputs; use the field `known`.")
        turns = dict(zip(system.states, system.scaler.turns, strict=False))
        angles = {at: system.states.index(name) for at, name in enumerate(self.sees) if turns.get(name)}
        self.network = make_layers(
            len(self.sees), outputs, system.scaler, angles, width=width, depth=depth, activation=activation, key=key
        ).silenced()

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        given = self.correction(t, y, u)
        terms = {name: size * given[index] for index, (name, size) in enumerate(self.terms)}
        rates = self.known.rates(t, y, u, terms)
        return rates.at[jnp.array(self.rest, int)].add(given[len(self.terms) :]) if self.rest else rates

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return self.known.triggers

    def levels(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        return self.known.levels(t, y, u)

    def sizes(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        return self.known.sizes(t, y, u)

    def jumped(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, "trigger state"]:
        return self.known.jumped(t, y, u)

    def correction(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " output"]:
        """The network's output, in scaled units: first the terms, then the remainder of the derivatives."""
        names = self.known.system.named(t, y, u)
        return self.network(jnp.stack([names[name] for name in self.sees]))


def input_names(system: System, names: Sequence[str] | None) -> tuple[str, ...]:
    """Checks and returns the names of the network's inputs."""
    known = (*system.states, *system.inputs, system.time)
    if names is not None and not names:
        raise ValueError(f"sees is empty, so the network has no inputs; the names are {', '.join(known)}.")
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(known)}."
            raise ValueError(f"sees names {name!r}, which is not a state, an input or the time; {hint}")
    return known[:-1] if names is None else tuple(names)


def corrected_states(system: System, rest: bool | Sequence[str]) -> tuple[int, ...]:
    """Indices of the states whose derivatives the network adds to."""
    if isinstance(rest, bool):
        return tuple(range(len(system.states))) if rest else ()
    for name in rest:
        if name not in system.states:
            raise ValueError(f"rest names {name!r}, which is not a state; the states are {', '.join(system.states)}.")
    return tuple(system.states.index(name) for name in rest)
