"""Precision and placement of a run: dtype and device of its leaves, several processes, several devices."""

import os
import re
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, DTypeLike, PyTree

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike  # Anything that NumPy converts to an array.

    # An array on a device or on the host.
    AnyArray = Array | np.ndarray
else:
    ArrayLike = object  # NumPy's type refuses numbers and tuples at run time.
    AnyArray = Array | np.ndarray | np.generic  # NumPy's scalars pass as arrays without axes.
Precision = Literal["x32", "x64"]
DeviceName = Literal["auto", "cpu", "gpu"]


@contextmanager
def scope(precision: str, device: jax.Device | None = None) -> Generator[None]:  # pyright: ignore[reportInvalidTypeForm]
    """Returns a context for arrays of this precision, without changing the process's own mode.

    **Arguments:** `device`: the device of new arrays, if not JAX's default device.
    """
    if precision not in ("x32", "x64"):
        raise ValueError(f"precision must be x32 or x64, got {precision!r}.")
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(precision == "x64"))
        if device is not None and device != default_device():
            stack.enter_context(jax.default_device(device))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        if device is not None and device.platform != "cpu":
            # By default, a GPU rounds the factors of float32 products to ten bits, far more than a step's tolerance.
            stack.enter_context(jax.default_matmul_precision("highest"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        yield


def scope_of(tree: PyTree) -> AbstractContextManager[None]:
    """Returns a context for computations with a tree's arrays, with their precision and device."""
    placed = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Array) and not isinstance(leaf, Tracer)]
    mine = [device for leaf in placed[:1] for device in leaf.devices() if device.process_index == jax.process_index()]
    return scope(precision_of(tree), min(mine, key=lambda device: device.id) if mine else None)


def default_device() -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the device on which JAX makes arrays."""
    given: object = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    return given if isinstance(given, jax.Device) else jax.local_devices()[0]


def ambient() -> Precision:
    """Returns the precision that the process currently uses."""
    return "x64" if jax.config.jax_enable_x64 else "x32"


def dtype_of(precision: str) -> np.dtype:
    """float32 or float64."""
    return np.dtype(np.float64 if precision == "x64" else np.float32)


def precision_of(tree: PyTree) -> Precision:
    """Returns the precision of a tree's floating arrays.

    **Raises:** `ValueError` that names the leaves if float32 and float64 are mixed.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    floats = [(jax.tree_util.keystr(path), leaf.dtype) for path, leaf in leaves if eqx.is_inexact_array(leaf)]
    kinds = {dtype for _, dtype in floats}
    if len(kinds) > 1:
        first = {dtype: path for path, dtype in reversed(floats)}
        described = ", ".join(f"{path} is {dtype}" for dtype, path in first.items())
        raise ValueError(f"all floating arrays of a model must have one dtype, but {described}; cast them to one.")
    return "x64" if kinds == {np.dtype(np.float64)} else "x32"


def find_device(name: str) -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the device that a run uses.

    **Arguments:**

    - `name`: `cpu`, `gpu`, or `auto` for the first that JAX finds.

    **Raises:** `ValueError` if no such device exists.
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
    """Converts Python floats of `tree` to arrays, so that a compiled program takes them as arguments."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) else x, tree)


def carry(tree: PyTree, dtype: DTypeLike, device: jax.Device | NamedSharding | None = None) -> PyTree:
    """Turns every array of `tree` into a leaf fit for a compiled loop.

    A leaf keeps its value and its kind; floats get `dtype`. It is strongly typed (a weak type compiles again once the
    loop has made it strong), has its own buffer (a shared one can't be donated), and is committed to `device` (an
    uncommitted one compiles again).

    **Arguments:**

    - `tree`: any pytree; leaves that are not JAX or NumPy arrays pass unchanged.
    - `dtype`: float32 or float64, for the floating leaves.
    - `device`: the device of the leaves; that of the `scope` if absent.
    """
    copied = cast(tree, dtype)
    # A single transfer is several times faster than one per leaf.
    placed = jax.device_put(eqx.filter(copied, is_array), device or default_device())
    return eqx.combine(placed, copied)


def cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Copies every array of `tree` into a NumPy array, floats in `dtype`; leaves random keys unchanged."""

    def leaf(x: PyTree) -> PyTree:
        if not is_array(x) or is_key(x):
            return x
        return np.array(x, dtype=dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    return jax.tree.map(leaf, tree)


def is_array(leaf: object) -> bool:
    """Whether a leaf is a JAX or NumPy array, or a scalar with a dtype."""
    return isinstance(leaf, Array | np.ndarray | np.generic)


def is_key(leaf: Array | np.ndarray | np.generic) -> bool:
    """Whether an array holds JAX random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


# Words that identify communication errors between processes.
COMMUNICATION = ("Gloo", "NCCL", "coordination service", "Connection closed by peer")


def join_processes_of(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Makes this process one of several; call it before JAX is used for anything else.

    **Arguments:**

    - `coordinator`: host and port of the first process; `auto` if the environment defines everything (Slurm, Open MPI).
    - `processes`, `process`: number of processes, and index of this one, from 0.

    **Raises:** `ValueError` if they do not connect.
    """
    address = None if coordinator == "auto" else coordinator
    if address is not None and not (
        isinstance(processes, int) and isinstance(process, int) and 0 <= process < processes
    ):
        raise ValueError(
            f"device.coordinator={coordinator} needs device.processes, the number of processes, and "
            f"device.process, the index of this one from 0; got {processes} and {process}."
        )
    try:
        jax.distributed.initialize(address, processes, process)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"device.coordinator={coordinator}: the processes did not connect ({first_line(error)}); start all of "
            "them, with the same device.coordinator and device.processes, and with device.process from 0."
        ) from None


def is_first() -> bool:
    """Whether this process is the one that writes; true for a single process."""
    return jax.process_index() == 0


def to_host(tree: PyTree) -> PyTree:
    """Copies a tree into whole NumPy arrays, whichever process holds which part; leaves random keys unchanged."""

    def leaf(x: object) -> object:
        if not isinstance(x, jax.Array) or is_key(x):
            return x
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        from jax.experimental.multihost_utils import process_allgather

        return process_allgather(x, tiled=True)

    return jax.tree.map(leaf, tree)


def broadcast_from_first(tree: PyTree) -> PyTree:
    """Returns the first process's arrays in all processes."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return to_host(broadcast_one_to_all(tree))


def any_process(flag: bool) -> bool:
    """Whether `flag` is true in any process."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(np.any(process_allgather(np.asarray(flag))))


def explain_lost_process(error: Exception) -> str | None:
    """Returns a message for an error caused by the end of another process; None for other errors."""
    if not (jax.distributed.is_initialized() and any(word in str(error) for word in COMMUNICATION)):
        return None
    return (
        f"another process of this run seems to have ended ({first_line(error)}); start all of them again, with resume= "
        "and the run's directory if it has saved a checkpoint."
    )


def exit_distributed(code: int) -> None:
    """Ends this process at once if it is one of several.

    It skips the exit handlers, in which JAX would wait for minutes for other processes that are gone.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


AXIS = "device"


@dataclass(frozen=True)
class Placement:
    """Places arrays on devices, as leaves of a run's state.

    **Arguments:**

    - `precision`: the precision of floats.
    - `device`: `auto`, `cpu` or `gpu`.
    - `count`: number of devices; all available ones if None.
    - `fewest`: minimum number of members or trajectories per device; fewer devices are used if necessary.

    **Raises:** `ValueError` if fewer devices are available.
    """

    precision: Precision
    device: str = "auto"
    count: int | None = 1
    fewest: int = 1

    @cached_property
    def devices(self) -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        """The devices in use."""
        first = find_device(self.device)
        there = jax.devices(first.platform)
        count = len(there) if self.count is None else self.count
        if not 1 <= count <= len(there):
            more = "; set JAX_NUM_CPU_DEVICES for more on a CPU" if first.platform == "cpu" else ""
            raise ValueError(
                f"device.count must be from 1 to {len(there)} on this {first.platform}, got {count}{more}."
            )
        return there[:count]

    def among(self, length: int) -> "Placement":
        """Uses a number of devices that divides `length`; all of them if several processes share them."""
        if jax.process_count() > 1:
            return self
        most = min(len(self.devices), max(length // self.fewest, 1))
        return replace(self, count=max(n for n in range(1, most + 1) if length % n == 0))

    def trace_programs(self) -> AbstractContextManager[object]:
        """Traces programs whose trajectories are spread over the devices."""
        return nullcontext() if len(self.devices) == 1 else jax.set_mesh(self.mesh)

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), AXIS)

    def replicate(self, tree: PyTree) -> PyTree:
        """Puts a full copy of a tree on every device."""
        return self.put(tree, PartitionSpec())

    def shard(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Spreads the leaves of a tree over the devices along an axis; replicates leaves that can't be split evenly."""
        count = len(self.devices)

        def leaf(x: PyTree) -> PyTree:
            divides = np.ndim(x) > axis and x.shape[axis] % count == 0
            return self.put(x, PartitionSpec(*[None] * axis, AXIS) if divides else PartitionSpec())

        return jax.tree.map(leaf, tree)

    def one(self, tree: PyTree) -> PyTree:
        """Puts a tree on the first device of this process."""
        return carry(tree, dtype_of(self.precision), self.own_device)

    @cached_property
    def own_device(self) -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
        """The first device of this process."""
        mine = [device for device in self.devices if device.process_index == jax.process_index()]
        if not mine:
            raise ValueError(f"device.count={self.count} leaves a process without a device; use device.count=all.")
        return mine[0]

    def scope(self) -> AbstractContextManager[None]:
        """Returns a context that makes arrays of this precision on the first device of this process."""
        return scope(self.precision, self.own_device)

    def host(self, tree: PyTree) -> PyTree:
        """Copies a tree into NumPy arrays, whichever devices hold it."""
        return cast(to_host(tree), dtype_of(self.precision))

    def put(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        if len(self.devices) == 1:
            return self.one(tree)
        sharding = NamedSharding(self.mesh, spec)
        if sharding.is_fully_addressable:
            return carry(tree, dtype_of(self.precision), sharding)
        # Each process contributes its part; JAX's device_put would wait for all others, to compare values.
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(x.shape, sharding, lambda at: x[at]) if is_array(x) else x,
            self.host(tree),
        )


SIZE = re.compile(r"allocat\w* ([\d.]+) ?(bytes|[KMGTPE]i?B)")
# Messages of the loader and Python when the system denies memory or a thread.
OF_SYSTEM = re.compile(r"failed to map segment|cannot allocate memory|can't start new thread", re.IGNORECASE)
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def explain_memory(error: Exception) -> str | None:
    """Returns a message for an out-of-memory error; None for other errors.

    **Arguments:**

    - `error`: the exception; XLA has its own kind for devices, and NumPy raises `MemoryError`.
    """
    text = str(error)
    if text.startswith("out of memory: "):
        return text
    of_device = isinstance(error, jax.errors.JaxRuntimeError) and text.startswith("RESOURCE_EXHAUSTED")
    of_system = isinstance(error, (ImportError, RuntimeError)) and OF_SYSTEM.search(text)
    if not of_device and not of_system and not isinstance(error, MemoryError):
        return None
    match = SIZE.search(text)
    asked = f": {readable(float(match[1]), match[2])} were requested at once" if match else ""
    return (
        f"out of memory{asked}; lower training.batch_size (with optimizer=adam), training.window or field.width, or "
        "fit fewer trajectories at a time."
    )


def readable(number: float, unit: str) -> str:
    """Formats a size with a suitable prefix."""
    if unit != "bytes":
        return f"{number:g} {unit}"
    power = 0
    while number >= 1000 and power < len(BYTE_UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {BYTE_UNITS[power]}"
