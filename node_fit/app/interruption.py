"""Signals that end a run with its state saved."""

import os
import signal
from collections.abc import Callable
from typing import Any

KINDS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context manager that records the first SIGINT or SIGTERM; a second one ends the process immediately.

    **Arguments:** `say`: called with a message for the user at the first signal.

    - `number`: the signal's number, or `None` before the first signal.
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
        self.say("stopping; send the signal again to stop immediately")

    @property
    def name(self) -> str:
        """The signal's name, such as `SIGTERM`."""
        return signal.Signals(self.number or signal.SIGTERM).name

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ends: 128 plus its number."""
        return 128 + (self.number or signal.SIGTERM)
