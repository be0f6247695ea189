"""The progress display of a fit."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..training.callback import Callback, Record, RunState

# Seconds between two lines within a chunk.
SILENCE = 8.0
# Seconds of a stage that are worth telling beforehand.
LONG = 20.0


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[list[Callback]]:
    """A list with the progress bar as a callback, or an empty one; by default in a terminal and in a notebook."""
    if not (in_terminal_or_notebook() if wanted is None else wanted):
        yield []
        return
    from rich.console import Console

    with Display(Console(highlight=False)) as display:
        yield [ShowProgress(display)]


def in_terminal_or_notebook() -> bool:
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class Display:
    """A progress bar on a terminal, plain lines elsewhere.

    **Arguments:** `console`: a `rich.console.Console`.
    """

    def __init__(self, console: Any):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        self.lines = not (console.is_terminal or console.is_jupyter)
        self.bar = Progress(
            TextColumn("{task.fields[stage]}"),
            BarColumn(bar_width=8),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=self.lines,
        )
        self.task: Any = None
        self.last: tuple[int, float] | None = None
        self.stage, self.steps, self.shown = "", 0, 0.0

    def __enter__(self) -> "Display":
        self.bar.start()
        self.task = self.bar.add_task("", total=1, stage="loading", figures="")
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def announce(self, stage: str, steps: int) -> None:
        """Says that a stage is being compiled."""
        self.bar.reset(self.task, total=steps, stage=f"compiling {stage}", figures="")
        self.stage, self.steps, self.last = stage, steps, None
        if self.lines:
            self.console.print(f"compiling {stage}: up to {steps} steps", soft_wrap=True)

    def began(self) -> None:
        """Says that a stage has been compiled and runs."""
        self.shown = time.perf_counter()

    def show_steps(self, step: int) -> None:
        """Shows the step that a long chunk has reached in its stage."""
        now = time.perf_counter()
        if not self.lines:
            self.bar.update(self.task, completed=step)
        elif now - self.shown > SILENCE:
            self.console.print(f"{self.stage:<10} step {step:>6} of {self.steps}", soft_wrap=True)
            self.shown = now

    def show(self, record: Record, state: RunState) -> None:
        """Shows a chunk."""
        now, step = time.perf_counter(), record.step - state.offset
        pace = None if self.last is None else (step - self.last[0]) / max(now - self.last[1], 1e-9)
        speed = "" if pace is None else f" {pace:.0f} steps/s" if pace >= 1 else f" {1 / max(pace, 1e-9):.1f} s/step"
        left = 0.0 if pace is None else (self.steps - step) / max(pace, 1e-9)
        self.last, self.shown = (step, now), now
        losses = f"loss {record.train_loss:.1e}"
        if record.validation_loss is not None:
            losses += f" validation {record.validation_loss:.1e}"
        if self.lines:
            self.console.print(
                f"{record.stage:<10} step {step:>6} of {self.steps}  {losses}{speed}{at_most(left)}",
                soft_wrap=True,
            )
        else:
            self.bar.update(self.task, completed=step, stage=record.stage, figures=losses + speed)


def at_most(seconds: float) -> str:
    """The longest time that a stage may still take, in words; a short one need not be told."""
    if seconds < LONG:
        return ""
    return f", at most {seconds:.0f} s more" if seconds < 90 else f", at most {seconds / 60:.0f} min more"


def leading(records: Sequence[Record], state: RunState) -> Record:
    """The record of the member with the lowest loss so far, among those that took part."""
    return min(records, key=lambda record: (float(state.members[record.member].best.loss), record.judged_loss))


class ShowProgress(Callback):
    """Shows the progress of the member that is doing best."""

    def __init__(self, display: Display):
        self.display = display

    def on_stage_compile(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        self.display.began()

    def on_steps(self, step: int, state: RunState) -> None:
        self.display.show_steps(step - state.offset)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> None:
        self.display.show(leading(records, state), state)
