"""The trained leaves of a model: a single mask that determines gradients, updates and optimizer states."""

import difflib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
from jaxtyping import PyTree

from ..data.scaling import Scaler
from .fields.known import Constants

Kind = TypeVar("Kind")
# Keys of the nodes from the root of a tree to a leaf.
KeyPath = tuple[PyTree, ...]
TRAINED = ("field", "start", "observation", "noise")


class Partition(NamedTuple):
    """A model in three parts of the same structure, with None for leaves that belong to another part.

    - `params`: floating arrays that are trained.
    - `frozen`: all other arrays; a compiled program takes them as arguments.
    - `static`: everything else; programs are compiled for it.
    """

    params: PyTree
    frozen: PyTree
    static: PyTree


def partition(model: PyTree, freeze: Sequence[str] = (), parts: Sequence[str] = TRAINED) -> Partition:
    """Splits a model.

    **Arguments:**

    - `model`: a model whose arrays have passed `precision.carry`.
    - `freeze`: names of leaves, or of whole parts, that are not trained, such as `field.layers.0`.
    - `parts`: names of the parts whose floating arrays are trained, except for those of a `Scaler`.

    **Raises:** `ValueError` if a name is unknown, or nothing is left to train.
    """
    paths = [name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    for frozen in freeze:
        if not any(is_within(path, frozen) for path in paths):
            constant = frozen.split(".")[-1]
            if any(constant in group.names for _, group in parameter_nodes(model, Constants)):
                value = f"{constant}: [VALUE, VALUE, VALUE]"
                raise ValueError(
                    f"freeze names the constant {frozen!r}; hold it by equal bounds: constants={{{value}}}."
                )
            prefixes = {".".join(path.split(".")[: i + 1]) for path in paths for i in range(path.count(".") + 1)}
            near = difflib.get_close_matches(frozen, sorted(prefixes), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the parts are {', '.join(sorted(prefixes))}."
            raise ValueError(f"freeze names {frozen!r}, which is no part of the model; {hint}")

    fixed = [*freeze, *(name(path) for path, _ in parameter_nodes(model, Scaler))]

    def is_trained(path: KeyPath, leaf: object) -> bool:
        full = name(path)
        chosen = any(is_within(full, part) for part in parts) and not any(is_within(full, f) for f in fixed)
        return chosen and eqx.is_inexact_array(leaf)

    mask = jax.tree_util.tree_map_with_path(is_trained, model)
    if not any(jax.tree.leaves(mask)):
        raise ValueError("nothing is left to train; the model has no floating arrays, or all are frozen.")
    params, untrained = eqx.partition(model, mask)
    frozen, static = eqx.partition(untrained, eqx.is_array)
    return Partition(params, frozen, static)


def network_weights(part: PyTree) -> list[jax.Array]:
    """Returns the floating arrays of a part with a prior around 0, without scales, constants and linear paths."""
    excluded = (Scaler, Constants)
    kept = jax.tree.map(
        lambda x: None if isinstance(x, excluded) else x, part, is_leaf=lambda x: isinstance(x, excluded)
    )
    kept = jax.tree.map(lambda x: x.prior_part if has_prior_part(x) else x, kept, is_leaf=has_prior_part)
    return jax.tree.leaves(eqx.filter(kept, eqx.is_inexact_array))


def has_prior_part(part: object) -> bool:
    """Whether a field or a start defines its own penalised parameters, as those with a linear path do."""
    return hasattr(type(part), "prior_part")


def parameter_nodes(model: PyTree, kind: type[Kind]) -> list[tuple[KeyPath, Kind]]:
    """Returns the parts of a model that are instances of this class, with their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda x: isinstance(x, kind))
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, kind)]


def name(path: KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def is_within(path: str, part: str) -> bool:
    return path == part or path.startswith(part + ".")


def count_parameters(params: PyTree) -> int:
    """Counts the parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
