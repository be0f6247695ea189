"""Several processes that share one run: each computes a part, all know the whole, and the first one writes."""

import os
import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .precision import is_key

# What errors of exchanges speak of.
EXCHANGE = ("Gloo", "NCCL", "coordination service", "Connection closed by peer")


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Makes this process one of several; before JAX is used for anything else.

    **Arguments:**

    - `coordinator`: host and port at which the first process is met; `auto` where the surroundings say all (Slurm,
      Open MPI).
    - `processes`, `process`: how many there are, and the number of this one, from 0.

    **Raises:** `ValueError` if they do not meet.
    """
    address = None if coordinator == "auto" else coordinator
    if address is not None and not (
        isinstance(processes, int) and isinstance(process, int) and 0 <= process < processes
    ):
        raise ValueError(
            f"device.coordinator={coordinator} needs device.processes, how many there are, and device.process, the "
            f"number of this one from 0 on; got {processes} and {process}."
        )
    try:
        jax.distributed.initialize(address, processes, process)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"device.coordinator={coordinator}: the processes do not meet ({first_line(error)}); start all of them, "
            "with the same device.coordinator and device.processes, and device.process from 0 on."
        ) from None


def is_first() -> bool:
    """Whether this is the process that writes; also true of one that is alone."""
    return jax.process_index() == 0


def to_host(tree: PyTree) -> PyTree:
    """A tree's arrays as NumPy's, whole, whichever process holds which part of them; random keys stay as they are."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, jax.Array) or is_key(x):
            return x
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        from jax.experimental.multihost_utils import process_allgather

        return process_allgather(x, tiled=True)

    return jax.tree.map(leaf, tree)


def of_first(tree: PyTree) -> PyTree:
    """The first process's arrays, in all processes."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return to_host(broadcast_one_to_all(tree))


def agreed(flag: bool) -> bool:
    """Whether any process says so."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(np.any(process_allgather(np.asarray(flag))))


def explain_parting(error: Exception) -> str | None:
    """A sentence for an error that comes of another process's end; None for others."""
    if not (jax.distributed.is_initialized() and any(word in str(error) for word in EXCHANGE)):
        return None
    return (
        f"another process of this run seems to have ended ({first_line(error)}); start all of them again, with resume= "
        "and the run's directory if it has saved something."
    )


def leave(code: int) -> None:
    """Ends this process at once if it is one of several, without what is registered for the end: JAX would wait for
    the others there, for minutes, if they are gone."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
