"""Signals that end a run in order."""

import os
import signal
from collections.abc import Callable
from typing import Any

KINDS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which the first SIGINT or SIGTERM is noted, and a second one ends the process at once.

    **Arguments:** `say`: tells the user what the first one leads to.

    - `number`: of the signal that came; None before.
    """

    def __init__(self, say: Callable[[str], Any]):
        self.say = say
        self.number: int | None = None

    def __enter__(self) -> "Interruption":
        self._before = [signal.signal(kind, lambda number, _: self.note(number)) for kind in KINDS]
        return self

    def __exit__(self, *_: Any) -> None:
        for kind, old in zip(KINDS, self._before, strict=True):
            signal.signal(kind, old)

    def note(self, number: int) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        self.say("stopping at the end of this chunk; once more to stop at once")

    @property
    def name(self) -> str:
        """The signal's name."""
        return signal.Signals(self.number or signal.SIGTERM).name

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ended."""
        return 128 + (self.number or signal.SIGTERM)
