"""Signals that end a run with its state saved."""

import os
import signal
from collections.abc import Callable
from typing import Any

# What a terminal, a scheduler or a limit on processor time sends: Slurm warns with SIGUSR1, if it is asked to.
KINDS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
)


class Interruption:
    """A context manager that records the first signal to end; a second one ends the process immediately.

    A signal that the process ignores, as SIGHUP under `nohup`, stays ignored.

    **Arguments:** `say`: called with a message for the user at the first signal.

    - `number`: the signal's number, or `None` before the first signal.
    """

    def __init__(self, say: Callable[[str], Any]):
        self.say = say
        self.number: int | None = None

    def __enter__(self) -> "Interruption":
        heard = [kind for kind in KINDS if signal.getsignal(kind) is not signal.SIG_IGN]
        self._before = {kind: signal.signal(kind, lambda number, _: self.note(number)) for kind in heard}
        return self

    def __exit__(self, *_: Any) -> None:
        for kind, old in self._before.items():
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
