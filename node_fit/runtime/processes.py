"""Several processes that share one run: each computes a part, all get the result, and the first one writes."""

import os
import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .precision import is_key

# Words in errors of communication between processes.
COMMUNICATION = ("Gloo", "NCCL", "coordination service", "Connection closed by peer")


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Makes this process one of several; call it before JAX is used for anything else.

    **Arguments:**

    - `coordinator`: host and port of the first process; `auto` if the environment says everything (Slurm, Open MPI).
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
    """Whether `flag` is true in any process."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(np.any(process_allgather(np.asarray(flag))))


def explain_parting(error: Exception) -> str | None:
    """The message for an error caused by the end of another process; None for other errors."""
    if not (jax.distributed.is_initialized() and any(word in str(error) for word in COMMUNICATION)):
        return None
    return (
        f"another process of this run seems to have ended ({first_line(error)}); start all of them again, with resume= "
        "and the run's directory if it has saved a checkpoint."
    )


def leave(code: int) -> None:
    """Ends this process at once if it is one of several.

    It skips the exit handlers, in which JAX would wait for minutes for other processes that are gone.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
