"""Training states on disk, from which a run goes on exactly where it was."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .loop import Moment
from .training import TrainState

LOG = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """No checkpoint can be used, for a reason that the message gives."""


class Checkpoints:
    """Saved moments of one run, the newest and the best kept, each with a digest of its arrays.

    **Arguments:**

    - `directory`: where they are; made if absent.
    - `keep`: how many of the newest stay.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = policy.AnyPreservationPolicy(
            [
                policy.LatestN(keep),
                # Orbax only sorts by it, so a pair will do.
                policy.BestN(get_metric_fn=merit, n=1, keep_checkpoints_without_metrics=False),  # pyright: ignore[reportArgumentType]
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=kept, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)
        self._ocp = ocp

    def save(self, moment: Moment, loss: float | None = None) -> None:
        """Saves a moment under its step; one that is already there stays.

        **Arguments:**

        - `moment`: what is saved.
        - `loss`: what its chosen iterate was judged by; its training loss if absent.
        """
        step = moment.step
        if step in self._manager.all_steps():
            return
        arrays = to_arrays(moment.state)
        loss = float(moment.state.chosen.loss) if loss is None else loss
        self._manager.save(
            step,
            args=self._ocp.args.Composite(
                state=self._ocp.args.StandardSave(arrays),
                meta=self._ocp.args.JsonSave(
                    {"stage": moment.stage, "offset": moment.offset, "digest": digest(arrays), "kinds": kinds(arrays)}
                ),
            ),
            metrics={"stage": moment.stage, "loss": loss if np.isfinite(loss) else float(np.finfo(np.float32).max)},
            force=True,
        )

    def restore(self, template: Callable[[int], TrainState], place: Callable[[PyTree], PyTree]) -> Moment | None:
        """The newest moment that is whole; None if none was ever saved.

        **Arguments:**

        - `template`: a state of the kind that the stage of an index has.
        - `place`: puts a tree of arrays where the run has its state.

        **Raises:** `CheckpointError` if all are damaged, or they belong to another model or optimizer.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        damaged = []
        for step in steps:
            try:
                arrays, meta = self._read(step)
            except Exception as error:  # Orbax raises many kinds for a truncated file
                damaged.append(f"{self.directory / str(step)} ({first_line(error)})")
                LOG.warning("checkpoint %s is damaged, the one before it is used", damaged[-1])
                continue
            state = template(meta["stage"])
            self._check_kinds(step, kinds(to_arrays(state)), meta["kinds"])
            for later in steps[: steps.index(step)]:
                self._manager.delete(later)
            return Moment(meta["stage"], meta["offset"], place(from_arrays(arrays, state)))
        if damaged:
            raise CheckpointError("every checkpoint is damaged: " + "; ".join(damaged) + ". Start a new run.")
        return None

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        meta = self._manager.restore(step, args=self._ocp.args.Composite(meta=self._ocp.args.JsonRestore()))["meta"]
        target = {name: np.empty(shape, dtype) for name, (shape, dtype) in meta["kinds"].items()}
        restore = self._ocp.args.Composite(state=self._ocp.args.StandardRestore(target))
        arrays = {name: np.asarray(array) for name, array in self._manager.restore(step, args=restore)["state"].items()}
        if digest(arrays) != meta["digest"]:
            raise CheckpointError("its content does not match its digest")
        return arrays, meta

    def _check_kinds(self, step: int, mine: dict, saved: dict) -> None:
        saved = {name: (tuple(shape), dtype) for name, (shape, dtype) in saved.items()}
        mine = {name: (tuple(shape), dtype) for name, (shape, dtype) in mine.items()}
        differences = [
            f"{name} is {describe(saved.get(name))} in the checkpoint and {describe(mine.get(name))} in this run"
            for name in sorted({*saved, *mine})
            if saved.get(name) != mine.get(name)
        ]
        if differences:
            shown = "; ".join(differences[:3]) + (f"; and {len(differences) - 3} more" if len(differences) > 3 else "")
            raise CheckpointError(f"checkpoint {self.directory / str(step)} is of another model or optimizer: {shown}.")


def merit(metrics: dict[str, int | float]) -> tuple[int | float, int | float]:
    """What the best checkpoint has most of: the latest stage, since losses of two do not compare, then a low loss.

    A loss that is no number was saved as a large one, and is never best.
    """
    return metrics["stage"], -metrics["loss"]


def to_arrays(state: TrainState) -> dict[str, np.ndarray]:
    """The leaves of a state by their paths, keys as their data."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        data = jax.random.key_data(leaf) if is_key(leaf) else leaf
        # Orbax makes directories of names, so a path is written without slashes.
        named[jax.tree_util.keystr(path, simple=True, separator=".")] = np.asarray(jax.device_get(data))
    return named


def from_arrays(arrays: dict[str, np.ndarray], template: TrainState) -> TrainState:
    """A state like `template` with these leaves."""

    def leaf(path: tuple, like: Array) -> Array | np.ndarray:
        array = arrays[jax.tree_util.keystr(path, simple=True, separator=".")]
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like)) if is_key(like) else array

    return jax.tree_util.tree_map_with_path(leaf, template)


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def kinds(arrays: dict[str, np.ndarray]) -> dict[str, tuple[list[int], str]]:
    return {name: (list(array.shape), str(array.dtype)) for name, array in arrays.items()}


def digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def describe(kind: tuple | None) -> str:
    return "absent" if kind is None else f"{kind[1]}{list(kind[0])}"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
