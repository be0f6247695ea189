"""An observer of node_fit that times its chunks, for the scripts beside it."""

import time
from typing import Any


class Watch:
    """Stops at a training or a validation loss, or when the time for training is up.

    - `chunks`: seconds that each chunk took, compilation apart.
    - `reached_at`: when the target was reached [s since the epoch]; None if it was not.
    - `at`: when the last chunk ended.
    """

    def __init__(self, train_loss: float = 0.0, validation_loss: float = 0.0, limit: float = float("inf")):
        self.train_loss = train_loss
        self.validation_loss = validation_loss
        self.limit = limit
        self.chunks: list[float] = []
        self.reached_at: float | None = None
        self.at = 0.0
        self.mark = 0.0

    def begin(self, model: Any, notes: Any) -> None:
        return None

    def resume(self, template: Any) -> None:
        return None

    def compile_stage(self, stage: str, steps: int) -> None:
        return None

    def begin_stage(self, stage: str) -> None:
        self.mark = time.perf_counter()

    def observe(self, records: Any, moment: Any) -> str | None:
        now = time.perf_counter()
        self.chunks.append(now - self.mark)
        self.mark, self.at = now, time.time()
        if any(self.meets(record) for record in records):
            self.reached_at = self.at
            return "the target is reached"
        return "the time is up" if sum(self.chunks) > self.limit else None

    def meets(self, record: Any) -> bool:
        # Training losses of other stages are of other objectives.
        trained = record.stage == "main" and record.train_loss <= self.train_loss
        return trained or (record.validation_loss is not None and record.validation_loss <= self.validation_loss)
