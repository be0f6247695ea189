"""The results of a run: its summary, and its lines and tables in a terminal."""

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from ..evaluation.diagnosis import Assessment
from ..evaluation.metrics import Figures, jsonable
from ..fitting.judge import Attempt
from ..fitting.readable import equations_of, equations_with_numbers, readout_of
from ..fitting.resolve import Choice
from ..fitting.result import Fit
from ..fitting.selection import Restarts
from ..model.ensemble import Ensemble
from ..model.fields.known import quantities
from ..model.initial_state.rule import describe_known_starts
from ..model.neural_ode import NeuralODE
from ..report.page import explain_term
from ..report.run_files import Summary
from ..runtime.placement import AnyArray, Placement, explain_memory
from ..runtime.serialization import Json
from ..sysid.state_space import StateSpace
from ..training.callback import ENDED
from ..uncertainty.confidence import ConfidenceInterval, Method, format_with_interval

# Methods for the confidence of constants.
Sureness = Method | Literal["none"]
EVERY = ("train", "validation", "test")
NOT_ASKED = "confidence=none."
# Kinds of diagnosis that make notes on residuals redundant: they are small, or differ from noise for another reason.
SAYS_ENOUGH = ("good", "failed", "unstable", "coarse", "flat", "unfinished")
# Maximum number of channels of a split in the table of scores.
MOST_PRINTED_CHANNELS = 6
# Maximum number of equations that are printed.
MOST_PRINTED_EQUATIONS = 12


def summarise(fit: Fit, report: Assessment, given: Mapping[str, int], place: Placement, method: Sureness) -> Summary:
    """Summarises a fit: its status, costs, scores, baseline scores and diagnosis.

    **Arguments:**

    - `fit`, `report`: the run's fit, and its assessment on the run's data.
    - `given`: number of rows of each split, including those that initial states are read from.
    - `place`: the run's precision and devices.
    - `method`: method for the confidence of constants: `fisher`, `profile` or `none`.
    """
    simple, scores = report.baselines, {name: score.as_dict() for name, score in report.scores.items()}
    sure = sureness(fit, method)
    return {
        "status": fit.status,
        "reason": fit.reason,
        "steps": fit.steps,
        "compiles": fit.compiles,
        "cached": fit.cached,
        "seconds": {"compile": round(fit.compile_seconds, 3), "train": round(fit.train_seconds, 3)},
        "precision": place.precision,
        "device": place.devices[0].device_kind,
        "devices": fit.devices,
        "parameters": fit.parameters,
        "start": describe_known_starts(fit.model.typical.start, fit.model.typical.system),
        "model": describe_model(fit.model),
        "equations": equations_with_numbers(fit.model),
        "constants": fit.model.constants(),
        "derived": {name: jsonable(float(value)) for name, value in derived_values(fit).items()},
        "likelihood": sure["likelihood"],
        "confidence": sure["confidence"],
        "residuals": {name: checks.as_dict() for name, checks in report.residuals.items()},
        "metrics": {name: scores.get(name) for name in EVERY},
        "baselines": {
            kind: {name: simple[name][kind].as_dict() if name in simple else None for name in EVERY}
            for kind in simple["train"]
        },
        # Numbers of scored rows, and of rows as announced at the start.
        "rows": {name: int(part.scored.sum()) for name, part in report.splits.items()},
        "given_rows": dict(given),
        "choices": {item.key: {"value": str(item.value), "reason": item.reason} for item in fit.choices},
        "warnings": list(fit.warnings),
        "linear_is_best": fit.is_linear and fit.steps > 0,
        "diagnosis": asdict(report.verdict),
        "expected": None if report.expected is None else asdict(report.expected),
        "attempts": [asdict(item) for item in fit.attempts],
        "horizon": fit.horizon,
        "chaos": None if report.case.chaos is None else report.case.chaos.as_dict(),
        "starts": None if fit.restarts is None else fit.restarts.as_dict(),
        "ensemble": describe_ensemble(fit, report),
    }


def describe_model(model: NeuralODE | Ensemble) -> Json:
    """Describes a model: classes of its parts, equations with named constants, and the state space of a linear one."""
    one, space = model.typical, StateSpace.of(model)
    parts = {name: type(getattr(one, name)).__name__ for name in ("field", "start", "observation")}
    return {
        **parts,
        "inputs": one.solver.interpolation if one.inputs else None,
        "equations": equations_of(model),
        "readout": readout_of(model),
        "state_space": None if space is None else space.as_dict(),
    }


def derived_values(fit: Fit) -> dict[str, float | AnyArray]:
    """Computes the derived quantities at the fitted constants."""
    values = fit.model.constants()
    return {quantity.name: quantity.of(values) for quantity in quantities(fit.options.derived)}


def sureness(fit: Fit, method: Sureness) -> dict[str, Json]:
    """Returns the confidence of the constants and the likelihood, or the reason for leaving them out."""
    if method == "none":
        reason = NOT_ASKED
    elif not fit.model.constants():
        reason = "the field has no constants; Fit.likelihood gives the likelihood of any fit of few parameters."
    else:
        try:
            return {"likelihood": asdict(fit.likelihood()), "confidence": fit.confidence(method).as_dict()}
        except (ValueError, MemoryError, np.linalg.LinAlgError, jax.errors.JaxRuntimeError) as error:
            reason = explain_memory(error) or str(error)
    return {"likelihood": {"left_out": reason}, "confidence": {"left_out": reason}}


def describe_ensemble(fit: Fit, report: Assessment) -> Json | None:
    """Describes the members' ends and the coverage of their bands by split; `None` for a single fit."""
    ensemble = fit.model if isinstance(fit.model, Ensemble) else None
    if ensemble is None and not fit.members:
        return None
    return {
        "members": [asdict(end) for end in fit.members],
        "kept": 1 if ensemble is None else len(ensemble.members),
        "calibrated": ensemble is not None and ensemble.calibrated,
        "level": None if ensemble is None or report.simulated is None else report.simulated.level,
        "coverage": report.coverage,
    }


def format_number(number: float | None) -> str:
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
    """Makes a console on standard output or standard error, 120 columns wide if it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # Python's own stream.
        stream.reconfigure(errors="backslashreplace")
    # State names can contain brackets, which are not markup.
    console = TolerantConsole(highlight=False, markup=False, stderr=stderr)
    return console if console.is_terminal else TolerantConsole(highlight=False, markup=False, stderr=stderr, width=120)


def pluralize(number: int, noun: str) -> str:
    """Formats a count, such as `1 state` or `2 states`; a noun in -y has a plural in -ies."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def print_table(console: Console, table: RichTable) -> None:
    """Prints a table, or a line per row if the terminal is too narrow."""
    if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
        console.print(table)
        return
    titles = [" ".join(str(column.header).split()) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        words = [f"{title} {cell}" for title, cell in zip(titles, cells, strict=True) if str(cell)]
        console.print(Text(", ".join(words)), soft_wrap=True)


def print_scores(console: Console, summary: Summary) -> None:
    """Prints the run's scores next to those of the baselines; with many channels, only the worst."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("split")
    table.add_column("channel")
    for name in ("RMSE", "NRMSE", "R²", *(f"{name}\nNRMSE" for name in summary["baselines"])):
        table.add_column(name, justify="right")
    left_out = 0
    for split, score in summary["metrics"].items():
        if score is None:
            continue
        simple_figures = [
            channel_figures
            for figures in summary["baselines"].values()
            if (channel_figures := figures[split]) is not None
        ]
        names = find_worst(score["channels"])
        left_out = len(score["channels"]) - len(names)
        rows: list[tuple[str, Figures, Sequence[Figures]]] = []
        if len(score["channels"]) > 1:
            rows.append(("all", score, simple_figures))
        for name in names:
            rows.append((name, score["channels"][name], [figures["channels"][name] for figures in simple_figures]))
        for name, channel_figures, baselines in rows:
            simpler = (format_number(baseline["nrmse"]) for baseline in baselines)
            table.add_row(
                split,
                name,
                format_number(channel_figures["rmse"]),
                format_number(channel_figures["nrmse"]),
                explain_term(channel_figures["r2"]),
                *simpler,
            )
    print_table(console, table)
    if left_out:
        console.print(
            f"of {left_out + MOST_PRINTED_CHANNELS} channels, the {MOST_PRINTED_CHANNELS} with the highest NRMSE "
            "are shown; "
            "summary.json holds all",
            soft_wrap=True,
        )


def find_worst(channels: Mapping[str, Figures]) -> list[str]:
    """Returns the channels to show: all, or, if there are many, those with the highest NRMSE in descending order."""
    if len(channels) <= MOST_PRINTED_CHANNELS:
        return list(channels)

    def error(name: str) -> float:
        nrmse = channels[name]["nrmse"]
        return math.inf if nrmse is None else nrmse

    return sorted(channels, key=error, reverse=True)[:MOST_PRINTED_CHANNELS]


def with_intervals(values: Mapping[str, float | None], intervals: Mapping[str, Json], held: str = "") -> str:
    """Formats names with values and intervals. `held` labels values without an interval if others have one."""
    shown: list[str] = []
    for name, value in values.items():
        if name in intervals:
            shown.append(format_with_interval(name, ConfidenceInterval.of(intervals[name])))
        else:
            plain = f"{name} = {'-' if value is None else f'{value:.4g}'}"
            shown.append(f"{plain} ({held})" if held and intervals else plain)
    return ", ".join(shown)


def print_equations(console: Console, summary: Summary) -> None:
    """Prints the equations, at the fitted constants, unless they were given."""
    kept_keys = (attempt["keys"] for attempt in summary["attempts"] if attempt["kept"])
    if summary["equations"] and ("field" in summary["choices"] or any("field" in keys for keys in kept_keys)):
        if len(summary["equations"]) > MOST_PRINTED_EQUATIONS:
            console.print(f"equations: {len(summary['equations'])}, which the page and summary.json list")
            return
        console.print("equations:")
        for state, text in summary["equations"].items():
            console.print(f"  d{state}/dt = {text}", soft_wrap=True, markup=False)
        for channel, text in summary["model"]["readout"].items():
            console.print(f"  {channel} = {text}", soft_wrap=True, markup=False)


def print_constants(console: Console, summary: Summary) -> None:
    """Prints the fitted constants of known equations, derived quantities, and their intervals."""
    constants, derived, confidence = summary["constants"], summary["derived"], summary["confidence"]
    if not constants:
        return
    level = f" (intervals at {confidence['level']:.0%})" if "constants" in confidence else ""
    notes = [*confidence.get("undetermined", ()), *confidence.get("notes", ())]
    if (reason := confidence.get("left_out")) and reason != NOT_ASKED:
        notes.append(f"No intervals of the constants: {reason}")
    lines = [f"constants: {with_intervals(constants, confidence.get('constants', {}), 'held')}{level}"]
    if derived:
        lines.append(f"derived: {with_intervals(derived, confidence.get('derived', {}))}")
    for line in (*lines, *notes):
        console.print(line, soft_wrap=True, markup=False)


def print_residuals(console: Console, summary: Summary) -> None:
    """Prints the dependencies of the training residuals, unless the diagnosis or a note has them already."""
    if summary["diagnosis"]["kind"] in SAYS_ENOUGH:
        return
    printed = [*summary["confidence"].get("notes", ()), summary["diagnosis"]["sentence"]]
    for sentence in summary["residuals"]["train"]["says"]:
        if not (sentence.startswith("Neighbouring") and any("eighbouring residuals" in text for text in printed)):
            console.print(sentence, soft_wrap=True, markup=False)


def print_results(console: Console, summary: Summary, starts: Restarts | None) -> None:
    """Prints scores, results of several starts, bands, equations, constants, and dependencies of residuals."""
    print_scores(console, summary)
    if starts is not None and starts.fits[0].constants:
        console.print(f"starts: {starts}", soft_wrap=True)
    print_bands(console, summary["ensemble"])
    print_equations(console, summary)
    print_constants(console, summary)
    print_residuals(console, summary)


def describe_end(status: str, reason: str, *, had_ended: bool) -> str:
    """Describes how a fit ended; a fit resumed after its end takes no steps."""
    again = had_ended and status in ENDED
    return f"{status}: {reason}" + ("; it had ended before, and took no further step" if again else "")


def attempt_lines(attempts: Sequence[Attempt], choices: Sequence[Choice], horizon: int | None) -> list[str]:
    """Describes the attempts and their results, with the choices that the kept attempt changed."""
    if len(attempts) < 2:
        return []
    lines = [f"tried {pluralize(len(attempts), 'fit')}:"]
    for attempt in attempts:
        lines.append(f"  {'*' if attempt.kept else '-'} {attempt}")
        lines += [f"    {choice}" for choice in choices if attempt.kept and choice.key in attempt.keys]
    if horizon is not None:
        lines.append(f"scores are of forecasts over windows of {horizon} rows: no whole trajectory is predicted")
    return lines


def print_bands(console: Console, ensemble: Json | None) -> None:
    """Prints the coverage of an ensemble's bands, if it has any."""
    if not ensemble or not ensemble["coverage"]:
        return
    shares = ", ".join(f"{share:.0%} of {name}" for name, share in ensemble["coverage"].items() if share is not None)
    how = "calibrated on validation data" if ensemble["calibrated"] else "not calibrated, for lack of validation data"
    without = [name for name, share in ensemble["coverage"].items() if share is None]
    if without and not ensemble["calibrated"]:
        how += f"; none of {' and '.join(without)}, which come later: set data aside with data.split.validation=0.2"
    members = pluralize(ensemble["kept"], "member")
    console.print(f"bands of {members} at {ensemble['level']:.0%} cover {shares}; {how}", soft_wrap=True)
