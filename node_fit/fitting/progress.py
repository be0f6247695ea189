"""The progress display of a fit."""

import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..training.callback import Callback, Record, RunState

if TYPE_CHECKING:
    from rich.console import Console

# Seconds of silence after which a line is printed; with the polling delay, no silence exceeds 2 s.
SILENCE = 1.75
# Minimum remaining time of a stage that is shown [s].
LONG_TEXT = 20.0


@contextmanager
def progress_bar(wanted: bool | None) -> Generator[list[Callback]]:
    """Yields a list with the progress bar as a callback, or an empty list; by default in terminals and notebooks."""
    if not (in_terminal() or in_notebook() if wanted is None else wanted):
        yield []
        return
    from rich.console import Console

    # Like other progress bars, use standard error if standard output goes to a file.
    console = Console(highlight=False, stderr=not is_terminal(sys.stdout) and is_terminal(sys.stderr))
    with Display(console) as display:
        yield [ShowProgress(display)]


def in_terminal() -> bool:
    return is_terminal(sys.stdout) or is_terminal(sys.stderr)


@runtime_checkable
class Stream(Protocol):
    """The interface required of replacements for standard output."""

    @property
    def closed(self) -> bool: ...
    def isatty(self) -> bool: ...


def is_terminal(stream: Stream | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def in_notebook() -> bool:
    """Whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class Display:
    """A progress bar in a terminal, an updated line in a notebook, or plain lines elsewhere.

    With plain lines, a thread prints the current activity and its elapsed time during long silences, such as
    compilation.

    **Arguments:** `console`: a `rich.console.Console`.
    """

    def __init__(self, console: "Console"):
        from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Clock(TimeRemainingColumn):
            """The remaining time, or the elapsed time of activities without a known end, such as compilation."""

            def render(self, task: Task) -> Text:
                if task.total is not None:
                    return super().render(task)
                return Text(f"{task.elapsed or 0:.0f} s", style="progress.elapsed")

        self.console = console
        self.cell: Any = None
        self.notebook = in_notebook()
        self.lines = not (console.is_terminal or self.notebook)
        self.bar = Progress(
            TextColumn("{task.fields[stage]}"),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[figures]}"),
            Clock(compact=True),
            console=console,
            transient=True,
            disable=self.lines or self.notebook,
        )
        self.task = TaskID(0)
        self.last: tuple[int, float] | None = None
        self.stage, self.shown = "", time.perf_counter()
        self.steps: int | None = None
        self.doing, self.since = "", self.shown
        self.ended = threading.Event()

    def __enter__(self) -> "Display":
        if self.lines:
            threading.Thread(target=self.repeat, name="progress", daemon=True).start()
        self.bar.start()
        # Without a total, the bar moves by itself.
        self.task = self.bar.add_task("", total=None, stage="", figures="")
        self.say("preparing")
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.bar.stop()

    def repeat(self) -> None:
        """Prints the current activity during every long silence."""
        while not self.ended.wait(SILENCE / 8):
            now = time.perf_counter()
            if now - self.shown > SILENCE:
                elapsed = f", {now - self.since:.0f} s so far" if now - self.since >= 1 else ""
                self.console.print(f"{self.doing}{elapsed}", soft_wrap=True, markup=False)
                self.shown = now

    def does(self, what: str) -> None:
        """Sets the current activity."""
        self.doing, self.since = what, time.perf_counter()

    def say(self, what: str) -> None:
        """Shows an activity outside of stages; on plain lines, only after a long silence."""
        self.does(what)
        if not self.lines:
            self.draw(what, None, 0, "")
        elif self.since - self.shown > SILENCE:
            self.console.print(what, soft_wrap=True)
            self.shown = self.since

    def draw(self, what: str, total: int | None, step: int, figures: str) -> None:
        """Updates the bar, or the line in a notebook."""
        count = "" if total is None else f"{step}/{total} "
        if self.notebook:
            self.write(f"{what} {count}{figures}".rstrip())
            return
        if total is None:
            self.bar.reset(self.task, total=None, stage=what, figures=figures)
        else:
            self.bar.update(self.task, total=total, completed=step, stage=what, figures=count + figures)

    def write(self, line: str) -> None:
        """Writes the line in a notebook, without widgets."""
        from IPython.display import display  # Always available in a notebook.

        content = {"text/plain": line}
        if self.cell is None:
            self.cell = display(content, raw=True, display_id=True)
        else:
            self.cell.update(content, raw=True)

    def announce(self, stage: str, steps: int) -> None:
        """Shows that a stage is being compiled."""
        self.stage, self.steps, self.last = stage, steps, None
        self.does(f"compiling {stage}")
        if self.lines:
            self.console.print(f"compiling {stage}: up to {steps} steps", soft_wrap=True)
            self.shown = self.since
        else:
            self.draw(f"compiling {stage}", None, 0, "")

    def began(self, stage: str) -> None:
        """Shows that a stage is running, whose number of steps is unknown if it was not compiled before."""
        if stage != self.stage:
            self.stage, self.steps, self.last = stage, None, None
        self.does(f"fitting {self.stage}")
        self.shown = self.since
        if not self.lines:
            self.draw(self.stage, self.steps, 0, "")

    @property
    def of_steps(self) -> str:
        """The maximum number of steps, in words; empty if it is unknown."""
        return "" if self.steps is None else f" of {self.steps}"

    def show_steps(self, step: int) -> None:
        """Shows the current step within a long chunk."""
        now = time.perf_counter()
        if not self.lines:
            self.draw(self.stage, self.steps, step, "")
        elif now - self.shown > SILENCE:
            self.console.print(f"{self.stage:<10} step {step:>6}{self.of_steps}", soft_wrap=True)
            self.shown = now

    def show(self, record: Record, state: RunState) -> None:
        """Shows a completed chunk."""
        now, step = time.perf_counter(), record.step - state.offset
        pace = None if self.last is None else (step - self.last[0]) / max(now - self.last[1], 1e-9)
        pace = pace or None  # A chunk without steps has no pace.
        speed = "" if pace is None else f" {pace:.0f} steps/s" if pace >= 1 else f" {1 / pace:.1f} s/step"
        remaining = 0.0 if pace is None or self.steps is None else (self.steps - step) / pace
        self.last, self.shown = (step, now), now
        # The activity until the next chunk, or after the last one.
        self.does(f"{record.stage}, after step {step}")
        losses = f"loss {record.train_loss:.1e}"
        if record.validation_loss is not None:
            losses += f" validation {record.validation_loss:.1e}"
        if self.lines:
            self.console.print(
                f"{record.stage:<10} step {step:>6}{self.of_steps}  {losses}{speed}{at_most(remaining)}",
                soft_wrap=True,
            )
        else:
            self.draw(record.stage, self.steps, step, losses + speed)
            self.bar.refresh()  # The next activity can replace it before the bar refreshes itself.


def at_most(seconds: float) -> str:
    """Formats the maximum remaining time of a stage; empty if short."""
    if seconds < LONG_TEXT:
        return ""
    return f", at most {seconds:.0f} s more" if seconds < 90 else f", at most {seconds / 60:.0f} min more"


def leading(records: Sequence[Record], state: RunState) -> Record:
    """Returns the record of the participating member with the lowest loss so far."""
    return min(records, key=lambda record: (float(state.members[record.member].best.loss), record.judged_loss))


class ShowProgress(Callback):
    """Shows the progress of the best member."""

    def __init__(self, display: Display):
        self.display = display

    def on_trial(self, what: str) -> None:
        self.display.say(f"trying {what}")

    def on_attempt(self, name: str, why: str) -> None:
        self.display.does(f"preparing {name}")

    def on_stage_compile(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        self.display.began(stage)

    def on_steps(self, step: int, state: RunState) -> None:
        self.display.show_steps(step - state.offset)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> None:
        self.display.show(leading(records, state), state)
