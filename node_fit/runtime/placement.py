"""Placement of a run's arrays, on one device or spread over several."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .precision import Precision, carry, cast, dtype_of, find_device, is_array
from .processes import to_host

AXIS = "device"


@dataclass(frozen=True)
class Placement:
    """Places arrays on devices, as leaves of a run's state.

    **Arguments:**

    - `precision`: of floats.
    - `device`: `auto`, `cpu` or `gpu`.
    - `count`: number of devices; all available ones if None.
    - `fewest`: members or trajectories that each device must get at least; fewer devices are used if there are fewer.

    **Raises:** `ValueError` if there are not that many.
    """

    precision: Precision
    device: str = "auto"
    count: int | None = 1
    fewest: int = 1

    @cached_property
    def devices(self) -> list[Any]:
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
        """Uses as many of the devices as divide `length`; all of them if several processes share them."""
        if jax.process_count() > 1:
            return self
        most = min(len(self.devices), max(length // self.fewest, 1))
        return replace(self, count=max(n for n in range(1, most + 1) if length % n == 0))

    def traced(self) -> AbstractContextManager:
        """Traces programs whose trajectories are spread over the devices."""
        return nullcontext() if len(self.devices) == 1 else jax.set_mesh(self.mesh)

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), AXIS)

    def replicate(self, tree: PyTree) -> PyTree:
        """Puts a whole tree on every device."""
        return self.put(tree, PartitionSpec())

    def shard(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Spreads the leaves of a tree over the devices along an axis; replicates leaves that can't be split evenly."""
        count = len(self.devices)

        def leaf(x: Any) -> Any:
            divides = np.ndim(x) > axis and x.shape[axis] % count == 0
            return self.put(x, PartitionSpec(*[None] * axis, AXIS) if divides else PartitionSpec())

        return jax.tree.map(leaf, tree)

    def one(self, tree: PyTree) -> PyTree:
        """Puts a tree on the first device of this process."""
        mine = [device for device in self.devices if device.process_index == jax.process_index()]
        if not mine:
            raise ValueError(f"device.count={self.count} leaves a process without a device; use device.count=null.")
        return carry(tree, dtype_of(self.precision), mine[0])

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
