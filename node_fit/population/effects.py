"""Random effects: how constants differ between subjects, and the covariance of their effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.domains import Bounds
from ..model.fields.known import Constants, constants_in
from ..model.neural_ode import NeuralODE
from ..runtime.serialization import parse_number
from ..runtime.validation import is_list_or_tuple, is_mapping, is_sequence

EffectKind = Literal["lognormal", "normal", "logit"]
KINDS: tuple[EffectKind, ...] = get_args(EffectKind)
# Initial variance of an effect: constants scatter by about a third.
FIRST_VARIANCE = 0.1
# Keys of an effect written as a mapping.
EFFECT_KEYS = ("kind", "variance")
# Type of `random`: names, or the kinds of the effects by name.
RandomEffects = Sequence[str] | Mapping[str, str | Mapping[str, object]]
# Constants that also differ between the records of a subject, or their initial variances; None if each trajectory is a
# subject.
Occasions = Sequence[str] | Mapping[str, float] | None
Covariance = Literal["diagonal", "full"] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class Coordinate:
    """A fitted constant, on the scale on which its random effect, if it has one, is normal.

    - `bounds`: the interval that is mapped to the line: positive numbers for a log-normal effect, all numbers for a
      normal one, two bounds for a logit one.
    - `kind`, `variance`: kind and initial variance of its effect; None if all subjects share the constant.
    - `occasion_variance`: initial variance between the records of a subject; None if it does not differ.
    - `is_weight`: whether it is a weight of the network, which all subjects share, instead of a constant.
    """

    name: str
    bounds: Bounds
    kind: EffectKind | None = None
    variance: float = FIRST_VARIANCE
    occasion_variance: float | None = None
    is_weight: bool = False


class Covariances(NamedTuple):
    """The block structure of the covariance of the effects; effects of different blocks are independent.

    - `blocks`: the indices of the effects in each block.

    Its parameters are the logarithm of each effect's standard deviation given the effects before it in its block, and
    then the elements of the Cholesky factors below the diagonal, as multiples of their row's diagonal element.
    """

    blocks: tuple[tuple[int, ...], ...]

    @property
    def effects(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Row and column of every element of the factor below the diagonal."""
        return [(block[i], block[j]) for block in self.blocks for i in range(len(block)) for j in range(i)]

    @property
    def parameters(self) -> int:
        return self.effects + len(self.pairs)

    def factor(self, x: Float[Array, " parameter"]) -> Float[Array, "effect effect"]:
        """Computes the lower Cholesky factor of the covariance."""
        deviations = jnp.exp(x[: self.effects])
        factor = jnp.eye(self.effects, dtype=x.dtype)
        if self.pairs:
            rows, columns = np.array(self.pairs).T
            factor = factor.at[rows, columns].set(x[self.effects :])
        return deviations[:, None] * factor

    def first(self, variances: Sequence[float]) -> Float[np.ndarray, " parameter"]:
        """Returns the parameters of independent effects with these variances."""
        return np.concatenate([0.5 * np.log(variances), np.zeros(len(self.pairs))])

    def parameters_of(self, covariance: Float[np.ndarray, "effect effect"]) -> Float[np.ndarray, " parameter"]:
        """Returns the parameters of a positive definite covariance."""
        factor = np.zeros_like(covariance)
        for block in self.blocks:
            at = np.ix_(block, block)
            factor[at] = np.linalg.cholesky(covariance[at])
        deviations = np.diag(factor)
        return np.concatenate([np.log(deviations), [factor[i, j] / deviations[i] for i, j in self.pairs]])


def coordinates_of(model: NeuralODE, random: RandomEffects) -> tuple[Coordinate, ...]:
    """Returns the fitted constants of a model with their bounds and effects.

    **Arguments:** `random`: the names of constants with effects, or their kinds by name, `lognormal`, `normal` or
    `logit`, or `{kind: lognormal, variance: 0.04}`.

    **Raises:** `ValueError` if a name is not that of a fitted constant, or a kind does not fit its bounds.
    """
    given = read_random(random)
    groups = constants_in((model.field, model.start, model.observation))
    values = model.constants()
    free = {name: bounds for group in groups for name, bounds, _ in group.free()}
    for name in given:
        if name not in free:
            raise ValueError(why_no_effect(name, groups, free))
    return tuple(
        Coordinate(name, *line_of(name, values[name], bounds, *given[name]))
        if name in given
        else Coordinate(name, shared_line(values[name], bounds))
        for name, bounds in free.items()
    )


def with_occasions(coordinates: Sequence[Coordinate], occasions: object) -> tuple[Coordinate, ...]:
    """Returns the coordinates with those that also differ between the records of a subject.

    **Arguments:** `occasions`: the names of these constants, or their initial variances, `{cl: 0.04}`; None if each
    trajectory is a subject.

    **Raises:** `ValueError` if a named constant does not differ between subjects, or a variance is invalid.
    """
    given = {} if occasions is None else read_occasions(occasions)
    effects = [c.name for c in coordinates if c.kind is not None]
    for name in given:
        if name not in effects:
            raise ValueError(
                f"occasions names {name!r}, which does not differ between subjects; name it in random, too, whose "
                f"constants are {', '.join(effects)}."
            )
    return tuple(replace(c, occasion_variance=given.get(c.name)) for c in coordinates)


def read_occasions(occasions: object) -> dict[str, float]:
    """Reads the initial variances of the effects of occasions.

    **Raises:** `ValueError` that explains the format.
    """
    if is_mapping(occasions):
        return {str(name): read_variance(f"occasions.{name}", each) for name, each in occasions.items()}
    if isinstance(occasions, str) or not is_sequence(occasions) or not all(isinstance(name, str) for name in occasions):
        raise ValueError(
            f"occasions must be a list of constants, such as [cl], or their first variances, {{cl: 0.04}}; got "
            f"{occasions!r:.60}."
        )
    return dict.fromkeys(map(str, occasions), FIRST_VARIANCE)


def read_variance(name: str, given: object) -> float:
    variance = parse_number(given) if isinstance(given, str) else given
    if isinstance(variance, bool) or not isinstance(variance, int | float) or not 0 < variance < np.inf:
        raise ValueError(f"{name} must be a positive number, got {variance!r:.40}.")
    return float(variance)


def why_no_effect(name: str, groups: Sequence[Constants], free: Mapping[str, Bounds]) -> str:
    if any(name in group.names for group in groups):
        return (
            f"random names {name!r}, which its bounds hold at one value; give it bounds that differ, or leave it out."
        )
    if not free:
        return (
            f"random names {name!r}, but the model has no constants; write equations with them, field=known, or "
            "field=hybrid with a network in them."
        )
    return (
        f"random names {name!r}, but the constants are {', '.join(free)}; constants get their first values by "
        f"field.constants, such as '+field.constants={{{name}: 1.0}}'."
    )


def read_random(random: object) -> dict[str, tuple[EffectKind | None, float]]:
    """Reads the kind (None if unspecified) and the initial variance of each effect.

    **Raises:** `ValueError` that explains the format.
    """
    if is_mapping(random):
        return {str(name): read_effect(str(name), entry) for name, entry in random.items()}
    if isinstance(random, str) or not is_sequence(random) or not all(isinstance(name, str) for name in random):
        raise ValueError(
            "random must be a list of constants, such as [ka, cl], or their kinds, {ka: lognormal}; "
            f"got {random!r:.60}."
        )
    twice = sorted({str(name) for name in random if list(random).count(name) > 1})
    if twice:
        raise ValueError(f"random names {twice[0]!r} twice; leave one out.")
    return {str(name): (None, FIRST_VARIANCE) for name in random}


def read_effect(name: str, entry: object) -> tuple[EffectKind | None, float]:
    """Reads the kind and the initial variance of an effect from its entry."""
    given = entry if is_mapping(entry) else {"kind": entry}
    unknown = [key for key in given if key not in EFFECT_KEYS]
    if unknown:
        raise ValueError(f"random.{name} has the key {unknown[0]!r}; its keys are {', '.join(EFFECT_KEYS)}.")
    kind = given.get("kind")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"random.{name} must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r:.40}.")
    return kind, read_variance(f"random.{name}.variance", given.get("variance", FIRST_VARIANCE))


def shared_line(value: float, bounds: Bounds) -> Bounds:
    """Returns the bounds of a shared constant; positive numbers if it has no bounds and is positive."""
    return (0.0, None) if bounds == (None, None) and value > 0 else bounds


def line_of(
    name: str, value: float, bounds: Bounds, kind: EffectKind | None, variance: float
) -> tuple[Bounds, EffectKind, float]:
    """Returns the bounds, the kind (chosen if None) and the initial variance of an effect.

    A positive constant is log-normal, one between two bounds logit, and any other normal.
    """
    lower, upper = bounds
    if kind is None:
        kind = "logit" if None not in bounds else "lognormal" if value > 0 and lower in (None, 0) else "normal"
    if kind == "normal":
        return (None, None), kind, variance
    if kind == "lognormal":
        if value <= 0 or upper is not None or lower not in (None, 0):
            raise ValueError(
                f"random.{name}: a log-normal effect needs a positive constant without an upper bound, and {name} is "
                f"{value:g} with the bounds {list(bounds)}; change them, or use normal or logit."
            )
        return (0.0, None), kind, variance
    if None in bounds:
        if bounds != (None, None) or not 0 < value < 1:
            raise ValueError(
                f"random.{name}: a logit effect needs two bounds; write field.constants.{name}: [value, lower, upper]."
            )
        return (0.0, 1.0), kind, variance
    return bounds, kind, variance


def read_covariance(covariance: object, effects: Sequence[str]) -> Covariances:
    """Reads the blocks of a covariance: `diagonal`, `full`, or lists of correlated effects.

    **Raises:** `ValueError` if a block names an unknown effect, or an effect twice.
    """
    if covariance == "diagonal":
        return Covariances(tuple((index,) for index in range(len(effects))))
    if covariance == "full":
        return Covariances((tuple(range(len(effects))),) if effects else ())
    if isinstance(covariance, str) or not is_sequence(covariance) or not all(map(is_list_or_tuple, covariance)):
        raise ValueError(
            f"covariance must be diagonal, full, or lists of effects such as [[cl, v]], got {covariance!r:.60}."
        )
    blocks = cast(Sequence[Sequence[str]], covariance)
    named = [name for block in blocks for name in block]
    for name in named:
        if name not in effects:
            raise ValueError(f"covariance names {name!r}, which has no effect; the effects are {', '.join(effects)}.")
        if named.count(name) > 1:
            raise ValueError(f"covariance names {name!r} twice; an effect belongs to one block.")
    together = [tuple(sorted(effects.index(name) for name in block)) for block in blocks if block]
    alone = [(index,) for index, name in enumerate(effects) if name not in named]
    return Covariances((*together, *alone))
