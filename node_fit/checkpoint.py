"""Training states on disk, from which a run goes on exactly where it was."""

import logging
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .disk import check_room, sweep
from .observer import Moment, Template
from .packed import BadFile, pack, peek, unpack
from .parameters import name
from .precision import is_key
from .training import TrainState

LOG = logging.getLogger(__name__)
Which = Literal["latest", "best"]
FLOATS = ("float32", "float64")
SUFFIX = ".safetensors"
# What a file has beside its arrays, and what a run writes besides [bytes].
OVERHEAD, OTHER_FILES = 64 << 10, 1 << 20


class CheckpointError(ValueError):
    """No checkpoint can be used or written, for a reason that the message gives."""


class Checkpoints:
    """Saved moments of one run, the newest and the best kept, each with a digest of all that it holds.

    **Arguments:**

    - `directory`: where they are; made if absent.
    - `keep`: how many of the newest stay.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        sweep(self.directory, f"*{SUFFIX}")
        self.keep = keep
        self._merits = {step: merit_on_disk(self._path(step)) for step in steps_in(self.directory)}

    def check_room(self, state: TrainState) -> None:
        """Refuses a disk that is too small for the checkpoints of states like this one, or can't be written to.

        **Raises:** `OSError` that says how much is missing.
        """
        size = sum(array.nbytes for array in to_arrays(state).values()) + OVERHEAD
        # The newest, the best, and the one that is being written.
        missing = max(self.keep + 2 - len(self._merits), 1)
        check_room(self.directory, missing * size + OTHER_FILES)

    def save(self, moment: Moment, loss: float | None = None) -> None:
        """Saves a moment under its step; one that is already there stays.

        **Arguments:**

        - `moment`: what is saved.
        - `loss`: what its chosen iterate was judged by; its training loss if absent.

        **Raises:** `CheckpointError` if it can't be written; those before it stay as they are.
        """
        step = moment.step
        if step in self._merits:
            return
        arrays = to_arrays(moment.state)
        loss = float(np.asarray(moment.state.chosen.loss).min()) if loss is None else loss
        meta = {
            "stage": moment.stage,
            "offset": moment.offset,
            "nodes": moment.nodes,
            "loss": loss if np.isfinite(loss) else None,
        }
        try:
            pack(self._path(step), meta, arrays)
        except OSError as error:
            raise CheckpointError(
                f"the state of step {step} can't be saved in {self.directory} ({error.strerror}); free some space "
                "there. The checkpoints before it are whole."
            ) from error
        self._merits[step] = merit(meta)
        self._tidy()

    def restore(
        self,
        template: Template,
        which: Which = "latest",
    ) -> Moment | None:
        """The newest moment that is whole, or the best; those after it are deleted. None if none was ever saved.

        **Arguments:**

        - `template`: a state of the kind that the stage of an index has, with a grid of so many nodes.
        - `which`: `latest`, or `best` for the lowest loss of the latest stage.

        **Raises:** `CheckpointError` if all are damaged, or they belong to another model or optimizer.
        """
        steps = sorted(self._merits, reverse=True)
        damaged = []
        for step in steps if which == "latest" else sorted(steps, key=self._rank, reverse=True):
            try:
                meta, arrays = unpack(self._path(step))
            except BadFile as error:
                damaged.append(f"{self._path(step)} ({error})")
                LOG.warning("checkpoint %s is damaged, the one before it is used", damaged[-1])
                continue
            state = template(meta["stage"], meta["nodes"])
            self._check_kinds(step, kinds(to_arrays(state)), kinds(arrays))
            for later in [other for other in steps if other > step]:
                self._delete(later)
            return Moment(meta["stage"], meta["offset"], from_arrays(arrays, state))
        if damaged:
            raise CheckpointError("every checkpoint is damaged: " + "; ".join(damaged) + ". Start a new run.")
        return None

    def _path(self, step: int) -> Path:
        return self.directory / f"{step}{SUFFIX}"

    def _rank(self, step: int) -> tuple[tuple[int, float], int]:
        """Sorts steps by merit, and by age where that is the same."""
        return self._merits[step], step

    def _tidy(self) -> None:
        """Deletes all but the newest and the best."""
        steps = sorted(self._merits)
        kept = {*steps[-self.keep :], max(steps, key=self._rank)}
        for step in steps:
            if step not in kept:
                self._delete(step)

    def _delete(self, step: int) -> None:
        self._path(step).unlink(missing_ok=True)
        del self._merits[step]

    def _check_kinds(self, step: int, mine: dict, saved: dict) -> None:
        """Refuses leaves of other shapes or kinds; floats of another precision will be cast, and that is said."""
        differing = [name for name in sorted({*saved, *mine}) if saved.get(name) != mine.get(name)]
        where = f"checkpoint {self._path(step)}"
        differences = [
            f"{name} is {describe(saved.get(name))} in the checkpoint and {describe(mine.get(name))} in this run"
            for name in differing
            if not is_cast(saved.get(name), mine.get(name))
        ]
        if differences:
            shown = "; ".join(differences[:3]) + (f"; and {len(differences) - 3} more" if len(differences) > 3 else "")
            raise CheckpointError(f"{where} is of another model or optimizer: {shown}.")
        if differing:
            before, after = saved[differing[0]][1], mine[differing[0]][1]
            LOG.warning("%s holds %s; its %d arrays are cast to %s", where, before, len(differing), after)


NO_MERIT = (-1, -np.inf)


def steps_in(directory: Path) -> list[int]:
    """The steps of which a directory has checkpoints, whole or not; none if there is no directory."""
    return sorted(int(path.stem) for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit() and path.is_file())


def merit_on_disk(path: Path) -> tuple[int, float]:
    try:
        return merit(peek(path))
    except (BadFile, KeyError, TypeError):  # named if it is ever to be restored
        return NO_MERIT


def merit(meta: dict[str, Any]) -> tuple[int, float]:
    """What the best checkpoint has most of: the latest stage, since losses of two do not compare, then a low loss.

    A loss that is no number was saved as none, and is never best.
    """
    return NO_MERIT if meta["loss"] is None else (meta["stage"], -meta["loss"])


def to_arrays(state: TrainState) -> dict[str, np.ndarray]:
    """The leaves of a state by their paths, keys as their data."""

    def array(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)

    return {name(path): array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def from_arrays(arrays: dict[str, np.ndarray], template: TrainState) -> TrainState:
    """A state like `template` with these leaves, floats in its precision."""

    def leaf(path: tuple, like: Any) -> Array | np.ndarray:
        if is_key(like):
            return jax.random.wrap_key_data(jnp.asarray(arrays[name(path)]), impl=jax.random.key_impl(like))
        with np.errstate(over="ignore"):
            return arrays[name(path)].astype(like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, template)


def is_cast(saved: tuple | None, mine: tuple | None) -> bool:
    """Whether two leaves differ in the precision of their floats alone."""
    return saved is not None and mine is not None and saved[0] == mine[0] and {saved[1], mine[1]} <= set(FLOATS)


def kinds(arrays: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}


def describe(kind: tuple | None) -> str:
    return "absent" if kind is None else f"{kind[1]}{list(kind[0])}"
