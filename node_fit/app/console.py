"""Console output of a run, and the tables at its end."""

import io
import os
import sys
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable


def figure(number: float | None) -> str:
    """Formats a number for a table; `None` becomes a dash."""
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3g}"


class TolerantConsole(Console):
    """A console that ignores a closed pipe or a full disk, since neither should end a run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Python would fail to flush its buffer when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)


def make_console(stderr: bool = False) -> Console:
    """A console on standard output or standard error, 120 columns wide if it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # One of Python's own.
        stream.reconfigure(errors="backslashreplace")
    # Names of states may hold brackets, which are no markup.
    options: dict[str, Any] = {"highlight": False, "markup": False, "stderr": stderr}
    console = TolerantConsole(**options)
    return console if console.is_terminal else TolerantConsole(**options, width=120)


def counted(number: int, noun: str) -> str:
    """Formats a count, such as `1 state` or `2 states`; a noun in -y has a plural in -ies."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def print_scores(console: Console, summary: dict[str, Any]) -> None:
    """Prints the run's scores next to those of the baselines."""
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
    """Prints the fitted constants of known equations, if there are any."""
    if constants:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in constants.items())
        console.print(f"constants: {values}", soft_wrap=True, markup=False)


def print_bands(console: Console, ensemble: dict[str, Any] | None) -> None:
    """Prints the share of measurements that the bands of an ensemble cover, if there are bands."""
    if not ensemble or not ensemble["coverage"]:
        return
    shares = ", ".join(f"{share:.0%} of {name}" for name, share in ensemble["coverage"].items() if share is not None)
    how = "calibrated on validation data" if ensemble["calibrated"] else "not calibrated, for lack of validation data"
    members = counted(ensemble["kept"], "member")
    console.print(f"bands of {members} at {ensemble['level']:.0%} cover {shares}; {how}", soft_wrap=True)
