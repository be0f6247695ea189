"""The number of steps that a chunk takes between two progress reports."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

# Seconds between two progress reports.
PATIENCE = 2.0


class Pace:
    """Chooses numbers of steps that take about two seconds, by the time of the last ones; the first step runs alone.

    The results do not depend on it. Several processes do not measure, since all must take the same steps.
    """

    def __init__(self):
        self.seconds: float | None = None

    def steps(self, left: int) -> int:
        """How many of the remaining steps to take at once."""
        if jax.process_count() > 1:
            return left
        if self.seconds is None:
            return 1
        return min(left, max(int(PATIENCE / self.seconds), 1))

    @contextmanager
    def timed(self, steps: int) -> Iterator[None]:
        """Records the time of some steps."""
        began = time.perf_counter()
        yield
        self.seconds = max(time.perf_counter() - began, 1e-9) / steps
