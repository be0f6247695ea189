"""What the programs of a stage are given besides the state: frozen parameters, numbers, data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .dataset import Dataset
from .grid import Shares, finest
from .members import Crew, Member
from .objectives import AbstractSimulation
from .parameters import Partition
from .placement import Placement
from .precision import numbers_as_arrays
from .stream import Stream, count_of, sample
from .training import Fixed

# Rows of the data by which steps are settled that all rows share.
SAMPLED = 256


@dataclass(frozen=True)
class Supply:
    """A stage's frozen parameters, numbers and data.

    - `own`, `shared`: what each member has of its own, and what all have; placed.
    - `rows`, `grids`: each member's data and first steps, on the host.
    - `streams`: each member's minibatches; None if every step sees all data.
    - `blocks`: how many solves an evaluation takes.
    - `crew`, `place`: of the members' arrays.
    """

    own: Fixed
    shared: Fixed
    rows: Sequence[PyTree]
    grids: Sequence[Shares | None]
    streams: Sequence[Stream] | None
    blocks: int
    crew: Crew
    place: Placement

    @staticmethod
    def of(
        index: int, members: Sequence[Member], parts: Sequence[Partition], train: Dataset, place: Placement
    ) -> "Supply":
        """What the stage of an index needs."""
        crew, stage = Crew(len(members)), members[0].stages[index]
        objective = stage.objective
        rows = objective.prepare(train, members[0].model)
        # Steps are as many for all members: those that the whole data suggest.
        grid = objective.first_grid(rows) if isinstance(objective, AbstractSimulation) else None
        count = count_of(rows)
        pools = [objective.draw(count, member.resample) for member in members]
        if stage.batch_size is None:
            streams, blocks = None, count
            seen, grids = zip(*(drawn((rows, grid), pool) for pool in pools), strict=True)
        else:
            streams = [
                Stream(rows, stage.batch_size, (member.seed, index), pool)
                for member, pool in zip(members, pools, strict=True)
            ]
            blocks = min(stage.batch_size, count)
            seen, grids = [sample(rows, SAMPLED)] * crew.size, [None if grid is None else finest(grid)] * crew.size
        numbers = [eqx.partition(numbers_as_arrays(member.stages[index]), eqx.is_array_like)[0] for member in members]
        fixed = [Fixed(part.frozen, number, data) for part, number, data in zip(parts, numbers, seen, strict=True)]
        own, shared = crew.share(fixed)
        # Data are spread over devices if these are not busy with members of their own.
        batch = place(shared.batch) if crew.size > 1 else place.spread(shared.batch)
        shared = replace(place(replace(shared, batch=None)), batch=batch)
        whole = seen if streams is None else [rows] * crew.size
        return Supply(place.spread(own), shared, whole, grids, streams, blocks, crew, place)

    def drawn(self, steps: Sequence[int], length: int) -> PyTree:
        """The minibatches of a chunk that begins at each member's step; None if every step sees all data."""
        if self.streams is None:
            return None
        chunks = [stream.chunk(step, length) for stream, step in zip(self.streams, steps, strict=True)]
        return self.place.spread(self.crew.stack(chunks), 0 if self.crew.size > 1 else 1)


def drawn(tree: PyTree, pool: np.ndarray | None) -> PyTree:
    """These rows of a tree's arrays; the tree itself if there is no pool."""
    return tree if pool is None else jax.tree.map(lambda x: x[pool], tree)
