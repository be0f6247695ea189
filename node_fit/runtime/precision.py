"""Float precision and device of a run, and the one function that makes a leaf of the training state."""

from contextlib import AbstractContextManager
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, PyTree

Precision = Literal["x32", "x64"]
DeviceName = Literal["auto", "cpu", "gpu"]


def scope(precision: str) -> AbstractContextManager:
    """The context in which arrays of this precision are made and used; leaves the process's own mode alone."""
    if precision not in ("x32", "x64"):
        raise ValueError(f"precision must be x32 or x64, got {precision!r}.")
    return jax.enable_x64(precision == "x64")


def ambient() -> Precision:
    """The precision that the process currently uses."""
    return "x64" if jax.config.jax_enable_x64 else "x32"  # pyright: ignore[reportAttributeAccessIssue]


def dtype_of(precision: str) -> np.dtype:
    """float32 or float64."""
    return np.dtype(np.float64 if precision == "x64" else np.float32)


def precision_of(tree: PyTree) -> Precision:
    """The precision of a tree's floating arrays.

    **Raises:** `ValueError` that names the leaves if float32 and float64 are mixed.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    floats = [(jax.tree_util.keystr(path), leaf.dtype) for path, leaf in leaves if eqx.is_inexact_array(leaf)]
    kinds = {dtype for _, dtype in floats}
    if len(kinds) > 1:
        first = {dtype: path for path, dtype in reversed(floats)}
        found = ", ".join(f"{path} is {dtype}" for dtype, path in first.items())
        raise ValueError(f"all floating arrays of a model must have one dtype, but {found}; cast them to one.")
    return "x64" if kinds == {np.dtype(np.float64)} else "x32"


def find_device(name: str) -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """The device that a run uses.

    **Arguments:**

    - `name`: `cpu`, `gpu`, or `auto` for the first that JAX finds.

    **Raises:** `ValueError` if there is no such device.
    """
    if name not in ("auto", "cpu", "gpu"):
        raise ValueError(f"device must be auto, cpu or gpu, got {name!r}.")
    if name == "auto":
        return jax.devices()[0]
    try:
        return jax.devices(name)[0]
    except RuntimeError:
        present = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise ValueError(
            f"device={name} was asked for, but JAX finds only: {present}. "
            'Install the GPU build with `pip install "jax[cuda13]"`, or use device=auto.'
        ) from None


def numbers_as_arrays(tree: PyTree) -> PyTree:
    """`tree` with Python floats as arrays, so that a compiled program takes them as arguments."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) else x, tree)


def carry(tree: PyTree, dtype: DTypeLike, device: jax.Device | None = None) -> PyTree:  # pyright: ignore[reportInvalidTypeForm]
    """Turns every array of `tree` into a leaf fit for a compiled loop.

    A leaf keeps its value and its kind; floats get `dtype`. It is strongly typed (a weak type compiles again once the
    loop has made it strong), has its own buffer (a shared one can't be donated), and is committed to `device` (an
    uncommitted one compiles again).

    **Arguments:**

    - `tree`: any pytree; leaves that are not JAX or NumPy arrays pass unchanged.
    - `dtype`: float32 or float64, for the floating leaves.
    - `device`: where the leaves go; the first local device if absent.
    """
    copied = cast(tree, dtype)
    # All at once, in a fraction of the time of one after the other.
    placed = jax.device_put(eqx.filter(copied, is_array), device or jax.local_devices()[0])
    return eqx.combine(placed, copied)


def cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Copies every array of `tree` into a NumPy array, floats in `dtype`; leaves random keys unchanged."""

    def leaf(x: Any) -> Any:
        if not is_array(x) or is_key(x):
            return x
        return np.array(x, dtype=dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    return jax.tree.map(leaf, tree)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a JAX or NumPy array, or a scalar with a dtype."""
    return isinstance(leaf, Array | np.ndarray | np.generic)


def is_key(leaf: Any) -> bool:
    """Whether an array holds JAX random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
