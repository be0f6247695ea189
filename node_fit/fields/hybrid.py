"""Known equations, and a network for what they leave out."""

import difflib
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..system import System
from .equations import check_name
from .field import AbstractVectorField
from .known import ConstantConfig, Known
from .mlp import Activation, Layers


class Hybrid(AbstractVectorField):
    """Known equations whose unknown terms, or whose remainder, a network gives.

    The network sees what it is told to, at order one. What it gives for the remainder is added to the known
    derivatives. It begins with nothing to say, so the first simulation is that of the equations.

    **Arguments:**

    - `system`, `equations`, `constants`: as of `Known`.
    - `terms`: names in the equations that the network gives, each with its typical magnitude in the user's units.
    - `rest`: whether the network also adds to the derivatives; or the names of the states of which it does. By default
      it does if there are no terms.
    - `sees`: names of the states and inputs that the network sees, or the time's; all states and inputs by default.
    - `width`, `depth`, `activation`: of the network, as of `MLP`.
    - `key`: for the initial weights.
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
        equations: Mapping[str, str],
        constants: Mapping[str, ConstantConfig],
        terms: Mapping[str, float] | None = None,
        rest: bool | Sequence[str] | None = None,
        width: int = 32,
        depth: int = 2,
        activation: Activation = "tanh",
        sees: Sequence[str] | None = None,
        key: PRNGKeyArray,
    ):
        terms = dict(terms or {})
        for name in terms:
            check_name(name, "term")
        self.known = Known(system, equations=equations, constants=constants, terms=tuple(terms))
        unused = sorted(set(terms) - self.known.equations.names_used())
        if unused:
            raise ValueError(f"terms names {unused[0]!r}, which stands in no equation.")
        self.terms = tuple((name, float(size)) for name, size in terms.items())
        self.rest = remainder(system, not terms if rest is None else rest)
        self.sees = seen(system, sees)
        outputs = len(self.terms) + len(self.rest)
        if outputs == 0:
            raise ValueError("rest and terms leave the network nothing to give; use the field `known`.")
        self.network = Layers(
            len(self.sees), outputs, width=width, depth=depth, activation=activation, key=key
        ).silenced()

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        given = self.correction(t, y, u)
        terms = {name: size * given[index] for index, (name, size) in enumerate(self.terms)}
        rates = self.known.rates(t, y, u, terms)
        return rates.at[jnp.array(self.rest, int)].add(given[len(self.terms) :]) if self.rest else rates

    def correction(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " output"]:
        """What the network gives, of order one: terms first, then what is added to derivatives."""
        names = self.known.system.named(t, y, u)
        return self.network(jnp.stack([names[name] for name in self.sees]))


def seen(system: System, names: Sequence[str] | None) -> tuple[str, ...]:
    """What the network sees, by name."""
    known = (*system.states, *system.inputs, system.time)
    if names is not None and not names:
        raise ValueError(f"sees is empty, so that the network is none; the names are {', '.join(known)}.")
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(known)}."
            raise ValueError(f"sees names {name!r}, which is no state, input or the time; {hint}")
    return known[:-1] if names is None else tuple(names)


def remainder(system: System, rest: bool | Sequence[str]) -> tuple[int, ...]:
    """Indices of the states to whose derivatives the network adds."""
    if isinstance(rest, bool):
        return tuple(range(len(system.states))) if rest else ()
    for name in rest:
        if name not in system.states:
            raise ValueError(f"rest names {name!r}, which is no state; the states are {', '.join(system.states)}.")
    return tuple(system.states.index(name) for name in rest)
