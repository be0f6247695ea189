"""Receives progress messages of a search and can stop it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")
# Interval between checks of a running thread [s].
MAX_WAIT = 0.2


class TimeIsUp(Exception):
    """Raised in a search that exceeds its time limit."""


def ignore_message(what: str) -> None:
    """Ignores a progress message."""


@dataclass
class SearchWatch:
    """A receiver of progress messages that stops the search once its time is up.

    **Arguments:** `tell`: called with a short description of the next step. `seconds`: time limit; None for no limit.
    """

    tell: Callable[[str], object] = ignore_message
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)

    def __call__(self, what: str) -> None:
        """Reports the next step.

        **Raises:** `TimeIsUp` if no time is left.
        """
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            raise TimeIsUp
        self.tell(what)

    def wait_for(self, what: str, function: Callable[[], Result]) -> Result:
        """Runs a long function in a thread, so that signals and the time limit take effect; returns its result."""
        results: list[Result] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(MAX_WAIT)
            self(what)
        if errors:
            raise errors[0]
        return results[0]
