"""What a run says while it goes on, and the tables at its end."""

import os
import sys
import time
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from .observer import Record


def figure(number: float | None) -> str:
    """A number for a table; a dash if there is none."""
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3g}"


class Patient(Console):
    """A console that nobody may be left to read, or whose disk may be full: no reason to end a run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What is still in Python's buffer would fail when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)


def make_console(stderr: bool = False) -> Console:
    """Standard output, or standard error; wide where no terminal sets the width."""
    console = Patient(highlight=False, stderr=stderr)
    return console if console.is_terminal else Patient(highlight=False, stderr=stderr, width=120)


def counted(number: int, noun: str) -> str:
    """`1 state`, `2 states`; a noun in -y has its plural in -ies."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


class Display:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.bar = Progress(
            TextColumn("{task.fields[stage]}"),
            BarColumn(bar_width=8),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task: Any = None
        self.last: tuple[int, float] | None = None

    def __enter__(self) -> "Display":
        self.bar.start()
        self.task = self.bar.add_task("", total=1, stage="loading", figures="")
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def announce(self, stage: str, steps: int) -> None:
        self.bar.reset(self.task, total=steps, stage=f"compiling {stage}", figures="")
        self.last = None

    def show(self, record: Record, step: int) -> None:
        """Shows a chunk; `step` counts within its stage."""
        now = time.perf_counter()
        speed = "" if self.last is None else f" {(step - self.last[0]) / max(now - self.last[1], 1e-9):.0f} steps/s"
        self.last = (step, now)
        losses = f"loss {record.train_loss:.1e}"
        if record.validation_loss is not None:
            losses += f" validation {record.validation_loss:.1e}"
        if self.console.is_terminal:
            self.bar.update(self.task, completed=step, stage=record.stage, figures=losses + speed)
        else:
            self.console.print(f"{record.stage:<10} step {record.step:>6}  {losses}{speed}", soft_wrap=True)


def print_scores(console: Console, summary: dict[str, Any]) -> None:
    """The run's figures beside those of the simple models."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("split")
    table.add_column("channel")
    for name in ("RMSE", "NRMSE", "R²", *(f"{name}\nNRMSE" for name in summary["baselines"])):
        table.add_column(name, justify="right")
    for split, score in summary["metrics"].items():
        if score is None:
            continue
        simple = [figures[split] for figures in summary["baselines"].values()]
        rows = [("all", score, simple)] if len(score["channels"]) > 1 else []
        rows += [
            (name, channel, [figures["channels"][name] for figures in simple])
            for name, channel in score["channels"].items()
        ]
        for index, (name, own, others) in enumerate(rows):
            figures = [own["rmse"], own["nrmse"], own["r2"], *(other["nrmse"] for other in others)]
            table.add_row(split if index == 0 else "", name, *(figure(number) for number in figures))
    console.print(table)


def print_constants(console: Console, constants: dict[str, float]) -> None:
    """The fitted constants of known equations, if there are some."""
    if constants:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in constants.items())
        console.print(f"constants: {values}", soft_wrap=True, markup=False)


def print_bands(console: Console, ensemble: dict[str, Any] | None) -> None:
    """How much of the measurements the bands of an ensemble cover, if there are some."""
    if not ensemble or not ensemble["coverage"]:
        return
    shares = ", ".join(f"{share:.0%} of {name}" for name, share in ensemble["coverage"].items() if share is not None)
    how = "calibrated on validation" if ensemble["calibrated"] else "not calibrated, as there are no validation data"
    members = counted(ensemble["kept"], "member")
    console.print(f"bands of {members} at {ensemble['level']:.0%}: cover {shares}; {how}", soft_wrap=True)
