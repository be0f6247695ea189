"""A callback that times the chunks of a fit, for the other scripts."""

import time
from collections.abc import Sequence

import node_fit


class Watch(node_fit.Callback):
    """Stops at a training or validation loss, or when the time for training is up.

    - `chunks`: seconds that each chunk took, without compilation.
    - `reached_at`: when the target was reached [s since the epoch]; None if it was not.
    - `at`: when the last chunk ended.
    - `held`: number of held steps after it; 0 if there are none.
    """

    def __init__(self, train_loss: float = 0.0, validation_loss: float = 0.0, limit: float = float("inf")):
        self.train_loss = train_loss
        self.validation_loss = validation_loss
        self.limit = limit
        self.chunks: list[float] = []
        self.reached_at: float | None = None
        self.at = 0.0
        self.held = 0
        self.mark = 0.0

    def on_stage_start(self, stage: str) -> None:
        self.mark = time.perf_counter()

    def on_chunk_end(self, records: Sequence[node_fit.Record], state: node_fit.RunState) -> str | None:
        now = time.perf_counter()
        self.chunks.append(now - self.mark)
        self.mark, self.at = now, time.time()
        grid = state.members[0].grid
        self.held = 0 if grid is None else grid.shape[-1] - 1
        if any(self.meets(record) for record in records):
            self.reached_at = self.at
            return "the target is reached"
        return "the time is up" if sum(self.chunks) > self.limit else None

    def meets(self, record: node_fit.Record) -> bool:
        # Training losses of other stages belong to other objectives.
        trained = record.stage == "main" and record.train_loss <= self.train_loss
        return trained or (record.validation_loss is not None and record.validation_loss <= self.validation_loss)
