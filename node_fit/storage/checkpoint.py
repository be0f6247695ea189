"""Training states on disk, from which a run resumes exactly."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..model.parameters import KeyPath, name
from ..runtime.placement import AnyArray, is_key
from ..runtime.serialization import Json, __version__
from ..training.callback import RunState, Template
from ..training.step import TrainState
from .files import CHECKPOINT_STEPS, BadFile, OtherSchema, advice, check_room, migrate, pack, peek, sweep, unpack

LOG = logging.getLogger(__name__)
Which = Literal["latest", "best"]
# The shape and dtype of a leaf, and those of all leaves by path.
KindOfLeaf = tuple[tuple[int, ...], str]
Kinds = dict[str, KindOfLeaf]
FLOATS = ("float32", "float64")
SUFFIX = ".safetensors"
# Version of the file format. Any change to it, or to the leaves of the state, needs a step in `storage.files`.
CHECKPOINT_SCHEMA = 1
# Size of a checkpoint without its arrays, and of all other files of a run [bytes].
OVERHEAD, OTHER_FILES = 64 << 10, 1 << 20


class CheckpointError(ValueError):
    """A checkpoint that can't be used or written; the message gives the reason."""


class Checkpoints:
    """Saved states of one run: keeps the newest and the best, each with a digest of its content.

    **Arguments:**

    - `directory`: where they are stored; created if absent.
    - `keep`: number of newest checkpoints to keep.
    - `run`: identity of their run; `None` for a run of an earlier version, which has none.
    """

    def __init__(self, directory: str | Path, keep: int = 3, run: str | None = None):
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        sweep(self.directory, f"*{SUFFIX}")
        self.keep = keep
        self.run = run
        self._merits = {step: merit_on_disk(self._path(step)) for step in steps_in(self.directory)}

    def check_room(self, members: Sequence[TrainState]) -> None:
        """Checks that the disk is writable and has room for checkpoints of states like these.

        **Raises:** `OSError` that states the missing space.
        """
        size = sum(array.nbytes for array in to_arrays(members).values()) + OVERHEAD
        # The newest, the best, and the one being written.
        missing = max(self.keep + 2 - len(self._merits), 1)
        check_room(self.directory, missing * size + OTHER_FILES)

    def save(self, run: RunState, loss: float | None = None) -> None:
        """Saves a state under its step; does nothing if that step is already saved.

        **Arguments:**

        - `run`: the state to save.
        - `loss`: the loss by which its iterate was chosen; its training loss if absent.

        **Raises:** `CheckpointError` if it can't be written; earlier checkpoints stay unchanged.
        """
        step = run.step
        if step in self._merits:
            return
        arrays = to_arrays(run.members)
        loss = min(float(state.chosen.loss) for state in run.members) if loss is None else loss
        meta = {
            "schema": CHECKPOINT_SCHEMA,
            "node_fit": __version__,
            "stage": run.stage,
            "offset": run.offset,
            "nodes": run.nodes,
            "loss": loss if np.isfinite(loss) else None,
            **({} if self.run is None else {"run": self.run}),
        }
        try:
            pack(self._path(step), meta, arrays)
        except OSError as error:
            raise CheckpointError(
                f"the state of step {step} can't be saved in {self.directory} ({error.strerror}); {advice(error)}. "
                "Earlier checkpoints are intact."
            ) from error
        self._merits[step] = merit(meta)
        self._tidy()

    def restore(
        self,
        template: Template,
        which: Which = "latest",
    ) -> RunState | None:
        """Restores the newest intact state, or the best, and deletes later ones; None if none was ever saved.

        **Arguments:**

        - `template`: makes states of a stage, from its index and the number of nodes of its held steps.
        - `which`: `latest`, or `best` for the lowest loss of the latest stage.

        **Raises:** `CheckpointError` if all are damaged, or belong to another run, model or optimizer.
        """
        steps = sorted(self._merits, reverse=True)
        for step in steps:
            self._check_run(step)
        damaged: list[str] = []
        for step in steps if which == "latest" else sorted(steps, key=self._rank, reverse=True):
            try:
                meta, arrays = migrate(*unpack(self._path(step)), CHECKPOINT_STEPS, CHECKPOINT_SCHEMA)
            except OtherSchema as error:
                raise CheckpointError(f"checkpoint {self._path(step)}: {error}") from None
            except BadFile as error:
                damaged.append(f"{self._path(step)} ({error})")
                LOG.warning("checkpoint %s is damaged; the one before it is used", damaged[-1])
                continue
            members = self._members(step, template, meta, arrays)
            for later in [newer for newer in steps if newer > step]:
                self._delete(later)
            return RunState(meta["stage"], meta["offset"], from_arrays(arrays, members))
        if damaged:
            raise CheckpointError("every checkpoint is damaged: " + "; ".join(damaged) + ". Start a new run.")
        return None

    def _path(self, step: int) -> Path:
        return self.directory / f"{step}{SUFFIX}"

    def _rank(self, step: int) -> tuple[tuple[int, float], int]:
        """Sort key: merit, then age."""
        return self._merits[step], step

    def _tidy(self) -> None:
        """Deletes all checkpoints but the newest and the best."""
        steps = sorted(self._merits)
        kept = {*steps[-self.keep :], max(steps, key=self._rank)}
        for step in steps:
            if step not in kept:
                self._delete(step)

    def _delete(self, step: int) -> None:
        self._path(step).unlink(missing_ok=True)
        del self._merits[step]

    def _check_run(self, step: int) -> None:
        """Rejects an intact checkpoint of another run, even if its model has the same structure."""
        path = self._path(step)
        try:
            if peek(path).get("run") != self.run and unpack(path)[0].get("run") != self.run:
                raise CheckpointError(
                    f"checkpoint {path} belongs to another run, not to {self.directory.parent}; move it away."
                )
        except BadFile:  # reported by `restore`
            return

    def _members(
        self, step: int, template: Template, meta: Json, arrays: dict[str, np.ndarray]
    ) -> tuple[TrainState, ...]:
        """Makes states of the kind that a checkpoint describes; the description is untrusted."""
        numbers = [meta.get(key) for key in ("stage", "offset", "nodes")]
        longest = max((size for array in arrays.values() for size in array.shape), default=0)
        if not all(type(number) is int and 0 <= number < 2**31 for number in numbers) or meta["nodes"] > longest:
            raise CheckpointError(f"checkpoint {self._path(step)} does not describe a state; remove it.")
        try:
            members = template(meta["stage"], meta["nodes"])
        except IndexError:
            raise CheckpointError(
                f"checkpoint {self._path(step)} belongs to another recipe: it is in stage {meta['stage'] + 1}, which "
                "this run does not have."
            ) from None
        self._check_kinds(step, kinds(to_arrays(members)), kinds(arrays))
        return members

    def _check_kinds(self, step: int, mine: Kinds, saved: Kinds) -> None:
        """Rejects leaves of other shapes or kinds; warns if floats of another precision will be cast."""
        differing = [name for name in sorted({*saved, *mine}) if saved.get(name) != mine.get(name)]
        where = f"checkpoint {self._path(step)}"
        differences = [
            f"{name} is {describe_tree(saved.get(name))} in the checkpoint and {describe_tree(mine.get(name))} "
            "in this run"
            for name in differing
            if not is_cast(saved.get(name), mine.get(name))
        ]
        if differences:
            shown = "; ".join(differences[:3]) + (f"; and {len(differences) - 3} more" if len(differences) > 3 else "")
            raise CheckpointError(f"{where} belongs to another model or optimizer: {shown}.")
        if differing:
            before, after = saved[differing[0]][1], mine[differing[0]][1]
            LOG.warning("%s holds %s; its %d arrays are cast to %s", where, before, len(differing), after)


NO_MERIT = (-1, -np.inf)


def steps_in(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints in a directory, intact or not; empty if it does not exist."""
    return sorted(int(path.stem) for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit() and path.is_file())


def merit_on_disk(path: Path) -> tuple[int, float]:
    try:
        return merit(peek(path))
    except (BadFile, KeyError, TypeError):  # reported if it is ever restored
        return NO_MERIT


def merit(meta: Json) -> tuple[int, float]:
    """Returns the rank of a checkpoint: by latest stage, then by lowest loss.

    Losses of different stages do not compare. A non-finite loss is saved as `None`, and never ranks best.
    """
    stage, loss = meta["stage"], meta["loss"]
    if not isinstance(stage, int) or not isinstance(loss, int | float):  # None, or an untrusted file
        return NO_MERIT
    return stage, -loss


def to_arrays(members: Sequence[TrainState]) -> dict[str, np.ndarray]:
    """Returns the leaves of the members' states by path, with random keys as their data."""

    def array(leaf: AnyArray) -> np.ndarray:
        return np.asarray(jax.random.key_data(cast(Array, leaf)) if is_key(leaf) else leaf)

    return {name(path): array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(members))}


def from_arrays(arrays: dict[str, np.ndarray], template: tuple[TrainState, ...]) -> tuple[TrainState, ...]:
    """Returns states like `template` with these leaves, cast to its precision."""

    def leaf(path: KeyPath, like: AnyArray) -> Array | np.ndarray:
        if is_key(like):
            data = jnp.asarray(arrays[name(path)])
            return cast(Array, jax.random.wrap_key_data(data, impl=jax.random.key_impl(cast(Array, like))))
        with np.errstate(over="ignore"):
            return arrays[name(path)].astype(like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, template)


def is_cast(saved: KindOfLeaf | None, mine: KindOfLeaf | None) -> bool:
    """Whether two leaves differ only in the precision of their floats."""
    return saved is not None and mine is not None and saved[0] == mine[0] and {saved[1], mine[1]} <= set(FLOATS)


def kinds(arrays: dict[str, np.ndarray]) -> Kinds:
    return {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}


def describe_tree(kind: KindOfLeaf | None) -> str:
    return "absent" if kind is None else f"{kind[1]}{list(kind[0])}"
