"""How many steps a chunk may take between two signs of life."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

# Seconds between two signs of life.
PATIENCE = 2.0


class Pace:
    """Steps that take about two seconds, from how long the last ones took; the first is taken alone.

    What is computed does not depend on it. Processes that run together do not measure: all must take the same steps.
    """

    def __init__(self):
        self.seconds: float | None = None

    def steps(self, left: int) -> int:
        """How many of the steps that are left to take at once."""
        if jax.process_count() > 1:
            return left
        if self.seconds is None:
            return 1
        return min(left, max(int(PATIENCE / self.seconds), 1))

    @contextmanager
    def timed(self, steps: int) -> Iterator[None]:
        """Measures so many steps."""
        began = time.perf_counter()
        yield
        self.seconds = max(time.perf_counter() - began, 1e-9) / steps
