"""Receives progress messages of a search, and can stop it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")
# Seconds between two looks at a thread that is waited for.
MAX_WAIT = 0.2


class TimeIsUp(Exception):
    """Raised in a search whose time is up."""


def say_nothing(what: str) -> None:
    """Reports nothing."""


@dataclass
class SearchWatch:
    """A receiver of progress messages, which stops the search once its time is up.

    **Arguments:** `tell`: called with what is done next, a few words. `seconds`: how long the search may take; None for
    as long as it needs.
    """

    tell: Callable[[str], object] = say_nothing
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)

    def __call__(self, what: str) -> None:
        """Reports the next step.

        **Raises:** `TimeIsUp` if no time is left for it.
        """
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            raise TimeIsUp
        self.tell(what)

    def wait_for(self, what: str, function: Callable[[], Result]) -> Result:
        """The result of a function that does not return to Python for long: signals and the time count meanwhile."""
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
