"""Which leaves of a model are trained: one mask, from which gradients, updates and optimizer states all follow."""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree


class Partition(NamedTuple):
    """A model in three parts of the same structure, with None where a leaf belongs to another part.

    - `params`: floating arrays that are trained.
    - `frozen`: all other arrays; a compiled program takes them as arguments.
    - `static`: what is no array; a compiled program is compiled for it.
    """

    params: PyTree
    frozen: PyTree
    static: PyTree


def partition(model: PyTree, freeze: Sequence[str] = (), part: str = "field") -> Partition:
    """Splits a model.

    **Arguments:**

    - `model`: whose arrays have passed `precision.carry`.
    - `freeze`: names of leaves, or of whole parts, that stay as they are, such as `field.layers.0`.
    - `part`: the name of the part that is trained: its floating arrays.

    **Raises:** `ValueError` if a name is unknown, or nothing is left to train.
    """
    paths = [name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    for frozen in freeze:
        if not any(within(path, frozen) for path in paths):
            parts = {".".join(path.split(".")[: i + 1]) for path in paths for i in range(path.count(".") + 1)}
            near = difflib.get_close_matches(frozen, sorted(parts), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the parts are {', '.join(sorted(parts))}."
            raise ValueError(f"freeze names {frozen!r}, which is no part of the model; {hint}")

    def is_trained(path: tuple, leaf: Any) -> bool:
        full = name(path)
        return within(full, part) and eqx.is_inexact_array(leaf) and not any(within(full, f) for f in freeze)

    mask = jax.tree_util.tree_map_with_path(is_trained, model)
    if not any(jax.tree.leaves(mask)):
        raise ValueError("nothing is left to train; the model has no floating arrays, or all are frozen.")
    params, rest = eqx.partition(model, mask)
    frozen, static = eqx.partition(rest, eqx.is_array)
    return Partition(params, frozen, static)


def name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def within(path: str, part: str) -> bool:
    return path == part or path.startswith(part + ".")


def count(params: PyTree) -> int:
    """The number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
