"""What is told of a run while it goes on, and to whom."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from .model import NeuralODE
from .training import TrainState

Status = Literal["completed", "stopped_early", "interrupted", "pruned", "failed"]


@dataclass(frozen=True)
class Record:
    """A chunk of a member's training, as a row of the log.

    `step` counts over all stages; losses are mean squared residuals in scaled units; `seconds` since the start. The
    `member` of a run that has only one is 0.
    """

    step: int
    stage: str
    train_loss: float
    validation_loss: float | None
    gradient_norm: float
    learning_rate: float
    evaluations: int
    failed_solves: int
    seconds: float
    member: int = 0


@dataclass(frozen=True)
class Moment:
    """Where a run is: the index of its stage, the most steps taken before that stage, and the stage's state."""

    stage: int
    offset: int
    state: TrainState

    @property
    def step(self) -> int:
        """Steps taken over all stages."""
        return self.offset + int(np.asarray(self.state.step).max())

    @property
    def nodes(self) -> int:
        """Nodes of the state's grid; 0 if it has none."""
        return 0 if self.state.grid is None else self.state.grid.shape[-1]


# A state of the kind that the stage of an index has, with a grid of so many nodes.
Template = Callable[[int, int], TrainState]


@runtime_checkable
class Observer(Protocol):
    """Someone who is told of every chunk, and may end the run."""

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        """The model has its initial parameters, and nothing is compiled yet. `notes` say what the recipe left out."""
        ...

    def resume(self, template: Template) -> Moment | None:
        """Where to go on from; None to begin."""
        ...

    def compile_stage(self, stage: str, steps: int) -> None:
        """A stage of `steps` steps at the most is about to be compiled."""
        ...

    def begin_stage(self, stage: str) -> None:
        """The stage is compiled and about to run."""
        ...

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        """A chunk has ended; a record for each member that took part. A reason to stop, if there is one."""
        ...


class Silent(Observer):
    """An observer that says nothing."""

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        return None

    def resume(self, template: Template) -> Moment | None:
        return None

    def compile_stage(self, stage: str, steps: int) -> None:
        return None

    def begin_stage(self, stage: str) -> None:
        return None

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        return None
