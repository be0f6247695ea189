"""The state of a run at the end of a chunk, and callbacks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.neural_ode import NeuralODE
from .state import TrainState

# How a fit ended: `converged` where its optimizer finds nothing lower, `stopped` before that, most often since the
# validation loss rose, `completed` after all of its steps.
Status = Literal["converged", "stopped", "completed", "interrupted", "pruned", "failed"]
# A fit that ended by itself, and well.
ENDED: tuple[Status, ...] = ("converged", "stopped", "completed")


@dataclass(frozen=True)
class Record:
    """A chunk of a member's training, as a row of the log.

    `step` counts over all stages. Losses are mean squared residuals in scaled units, and `seconds` count from the start
    of the run. The `member` of a single fit is 0.
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

    @property
    def judged_loss(self) -> float:
        """The validation loss, or the training loss if there is none; infinity for NaN."""
        loss = self.train_loss if self.validation_loss is None else self.validation_loss
        return loss if math.isfinite(loss) else math.inf


@dataclass(frozen=True)
class RunState:
    """The state of a run between two chunks.

    - `stage`: index of the stage.
    - `offset`: steps before that stage, of the member that took most.
    - `members`: each member's state in the stage, on the host.
    """

    stage: int
    offset: int
    members: tuple[TrainState, ...]

    @property
    def step(self) -> int:
        """Steps over all stages, of the member that took most."""
        return self.offset + max(int(np.asarray(state.step)) for state in self.members)

    @property
    def nodes(self) -> int:
        """Number of nodes of the held steps; 0 if there are none."""
        return self.members[0].nodes

    def of(self, member: int) -> "RunState":
        """The state of one member only."""
        return RunState(self.stage, self.offset, (self.members[member],))


# From the index of a stage and a number of nodes of held steps to states of that structure.
Template = Callable[[int, int], tuple[TrainState, ...]]


class Callback:
    """Hooks that a fit calls between chunks; a callback may stop the fit.

    By default, every hook does nothing. This callback stops when the loss is low enough:

    ```python
    class StopBelow(node_fit.Callback):
        def __init__(self, loss):
            self.loss = loss

        def on_chunk_end(self, records, state):
            if records[0].train_loss < self.loss:
                return f"the loss is below {self.loss}"


    node_fit.fit(train, callbacks=[StopBelow(1e-3)])
    ```
    """

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        """The model has its initial parameters, and nothing is compiled yet. `notes` say what was chosen, and why."""

    def on_trial(self, what: str) -> None:
        """A short fit that tries an option, such as `penalty.ridge=0.1`, is about to begin; before `on_fit_start`."""

    def on_attempt(self, name: str, why: str) -> None:
        """Another fit is about to begin, since the best so far is not good; its steps count on. `why` says so."""

    def restore(self, template: Template) -> RunState | None:
        """The state to resume from; None to start. `template` gives states of the structure of a stage."""
        return None

    def on_stage_compile(self, stage: str, steps: int) -> None:
        """A stage of at most `steps` steps is about to be compiled."""

    def on_stage_start(self, stage: str) -> None:
        """The stage is compiled and about to run."""

    def on_steps(self, step: int, state: RunState) -> str | None:
        """A long chunk has reached a step; called every few seconds. Return a reason to stop, or None.

        A stop discards the chunk: the run ends in `state`, which is from before it.
        """
        return None

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        """A chunk has ended, with a record for each member that took part. Return a reason to stop, or None."""
        return None

    def on_fit_end(self) -> None:
        """The training has ended, also by an error or Ctrl-C; for closing what the callback has opened."""


class Callbacks(Callback):
    """Several callbacks as one; the first that has a state to restore, or a reason to stop, decides."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = callbacks

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        for callback in self.callbacks:
            callback.on_fit_start(model, notes)

    def on_trial(self, what: str) -> None:
        for callback in self.callbacks:
            callback.on_trial(what)

    def on_attempt(self, name: str, why: str) -> None:
        for callback in self.callbacks:
            callback.on_attempt(name, why)

    def restore(self, template: Template) -> RunState | None:
        found = [callback.restore(template) for callback in self.callbacks]
        return next((state for state in found if state is not None), None)

    def on_stage_compile(self, stage: str, steps: int) -> None:
        for callback in self.callbacks:
            callback.on_stage_compile(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        for callback in self.callbacks:
            callback.on_stage_start(stage)

    def on_steps(self, step: int, state: RunState) -> str | None:
        found = [callback.on_steps(step, state) for callback in self.callbacks]
        return next((reason for reason in found if reason is not None), None)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        found = [callback.on_chunk_end(records, state) for callback in self.callbacks]
        return next((reason for reason in found if reason is not None), None)

    def on_fit_end(self) -> None:
        for callback in self.callbacks:
            callback.on_fit_end()
