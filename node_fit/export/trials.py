"""Checks of an exported model: records, predictions from its files, and their differences from node_fit's."""

import csv
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.inputs import kinds_by_input
from ..model.ensemble import Ensemble, add_to_rows
from ..model.initial_state.rule import AbstractStart, Guess, Simulate, Starts
from ..model.initial_state.trained import Fitted
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, dtype_of, precision_of, scope, scope_of
from ..solver.methods import EXPLICIT
from ..solver.solver import Solver
from .c import on_one_line, state_names
from .functions import Exported
from .numpy_target import render_numpy
from .tracing import CannotExport

# Maximum number of trajectories and of rows to check.
MOST_CHECKED, MOST_CHECKED_ROWS = 12, 2000
# Tolerances of the reference solve, by whether the method is explicit; implicit methods reach no tighter ones.
TIGHTEST = {True: (1e-10, 1e-12), False: (1e-9, 1e-11)}
# Relative tolerance below which predictions are as good as the reference solve.
TIGHT_ENOUGH = 1e-9
LONGEST_RUN = 300  # [s]
FLAGS = ("-std=c99", "-O2")


@dataclass(frozen=True)
class CheckRecord:
    """A record as read by an exported model, in the user's units.

    - `name`: name of the trajectory.
    - `t`, `channels`, `inputs`: times, measured channels (NaN where not measured) and inputs of its rows.
    - `start`: the states of all members at the first row; None if the exported model estimates them.
    - `factor`, `shift`: factors and shifts of the states of all members just after each row; None without events.
    """

    name: str
    t: Float[np.ndarray, " row"]
    channels: Float[np.ndarray, "row channel"]
    inputs: Float[np.ndarray, "row input"]
    start: Float[np.ndarray, " state"] | None
    factor: Float[np.ndarray, "row state"] | None
    shift: Float[np.ndarray, "row state"] | None


@dataclass(frozen=True)
class Difference:
    """The largest difference between two predictions, as a share of the range of its column.

    - `largest`, `column`: that share, and the name of the column.
    """

    largest: float
    column: str


def in_double(model: NeuralODE | Ensemble) -> NeuralODE | Ensemble:
    """Returns the model in double precision, with tolerances so tight that the solver's error is negligible."""
    with scope("x64"):
        cast_model = carry(model, dtype_of("x64"))
        members = cast_model.members if isinstance(cast_model, Ensemble) else (cast_model,)
        tight = [replace(member, solver=tighten(member.solver)) for member in members]
        return replace(cast_model, members=tuple(tight)) if isinstance(cast_model, Ensemble) else tight[0]


def with_lines_for_cubics(model: NeuralODE | Ensemble) -> NeuralODE | Ensemble:
    """Replaces cubic inputs, which need the rows around an interval, with linear ones."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    kinds = kinds_by_input(members[0].solver.interpolation, len(members[0].inputs))
    if "cubic" not in kinds:
        return model
    lines = tuple("linear" if kind == "cubic" else kind for kind in kinds)
    linear = tuple(replace(member, solver=replace(member.solver, inputs=lines)) for member in members)
    return replace(model, members=linear) if isinstance(model, Ensemble) else linear[0]


def tighten(solver: Solver) -> Solver:
    if solver.is_exponential:  # Other targets solve the field itself.
        solver = replace(solver, method="tsit5", stepping="adaptive")
    rtol, atol = TIGHTEST[solver.method in EXPLICIT]
    return replace(solver, rtol=rtol, atol=atol, max_steps=max(solver.max_steps, 100_000))


def is_tight(model: NeuralODE | Ensemble) -> bool:
    """Whether the model's own predictions are as accurate as those of `in_double`."""
    rtol = model.typical.solver.rtol
    if rtol is None or isinstance(rtol, tuple) or np.ndim(rtol):
        return False
    return precision_of(model) == "x64" and float(rtol) <= TIGHT_ENOUGH


def select_rows(data: Dataset) -> Dataset:
    """Returns a few trajectories of the data and their first rows, all of them scored."""
    subset = data.sample(MOST_CHECKED)
    rows = min(int(subset.lengths.max()), MOST_CHECKED_ROWS)
    if rows < subset.ts.shape[1]:
        subset = subset.until(subset.ts[:, rows - 1])
    return replace(subset, scored=subset.valid)


def make_up_record(model: NeuralODE) -> Dataset:
    """Makes a record for a model without data: it starts at the mean, and its inputs oscillate around theirs."""
    scaler = model.scaler
    t = np.arange(61) / 10
    ts = t * float(scaler.time_scale) + float(scaler.time_shift)
    ys = np.full((len(t), len(model.states)), np.nan)
    ys[:20] = scaler.unscale_states(np.zeros((1, len(model.states))))
    swing = np.sin(t)[:, None] * np.ones(len(model.inputs)) * 0.5
    us = swing * np.asarray(scaler.input_scale, np.float64) + np.asarray(scaler.input_shift, np.float64)
    if scaler.input_bounds:
        us = np.ones_like(us) * 0.5
    return Dataset.from_arrays(
        ts, ys, us, states=model.states, inputs=model.inputs, time=model.system.time, units=dict(model.units)
    )


def trials_of(model: NeuralODE | Ensemble, data: Dataset) -> list[CheckRecord]:
    """Returns the records of a dataset.

    **Arguments:** `model`: as returned by `with_given_starts` and `in_double`.
    """
    data = replace(data, angles={}) if data.angles else data
    starts = given_starts(model)
    records: list[CheckRecord] = []
    for row, length in enumerate(data.lengths.tolist()):
        factor, shift = jumps_of(model, data, row, length)
        records.append(
            CheckRecord(
                data.trajectories[row],
                data.ts[row, :length],
                data.ys[row, :length],
                data.us[row, :length],
                None if starts is None else starts[row],
                factor,
                shift,
            )
        )
    return records


class Given(AbstractStart):
    """The known initial states of some trajectories.

    - `values`: in scaled units, one for each trajectory of a dataset.
    """

    guess: Guess
    values: Starts

    def __call__(self, batch: Batch) -> Starts:
        return self.values[batch.index]

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        return "its start"


def with_given_starts(model: NeuralODE | Ensemble, data: Dataset) -> NeuralODE | Ensemble:
    """Fixes the initial states that a model fits to these trajectories; returns other models unchanged."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    if not isinstance(members[0].start, Fitted):
        return model
    precision = precision_of(model)
    fixed: list[NeuralODE] = []
    with scope_of(model):
        for number, member in enumerate(members):
            needed = member.start.needed_rows(member.batch(data))
            added = model.vary_rows(needed) if isinstance(model, Ensemble) else None
            varied = needed if added is None else add_to_rows(needed, *(rows[number] for rows in added))
            batch = carry(varied, dtype_of(precision))
            values = eqx.filter_jit(NeuralODE.estimated_start)(member, batch)
            fixed.append(replace(member, start=Given(member.start.guess, values)))
    return replace(model, members=tuple(fixed)) if isinstance(model, Ensemble) else fixed[0]


def given_starts(model: NeuralODE | Ensemble) -> Float[np.ndarray, "trajectory state"] | None:
    """Returns the known initial states of all members in the user's units; None for other rules, which are exported."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    starts = [(member.system.scaler, member.start.values) for member in members if isinstance(member.start, Given)]
    return np.concatenate([s.unscale_states(np.asarray(z)) for s, z in starts], axis=1) if starts else None


def jumps_of(
    model: NeuralODE | Ensemble, data: Dataset, row: int, length: int
) -> tuple[Float[np.ndarray, "row state"] | None, Float[np.ndarray, "row state"] | None]:
    """Returns factors and shifts of all states of all members after the rows of a trajectory."""
    events = data.events
    if events is None:
        return None, None
    names, members = model.typical.latent, len(getattr(model, "members", (0,)))
    factor, shift = np.ones((length, len(names))), np.zeros((length, len(names)))
    for column, name in enumerate(events.states):
        factor[:, names.index(name)] = events.factor[row, :length, column]
        shift[:, names.index(name)] = events.shift[row, :length, column]
    return np.tile(factor, members), np.tile(shift, members)


def predicted_columns(
    model: NeuralODE | Ensemble, data: Dataset, level: float
) -> list[Float[np.ndarray, "row column"]]:
    """Returns node_fit's predictions for each trajectory, in the order of `Exported.columns`."""
    predicted = model.bands(data, level=level)
    parts = [part for part in (predicted.ys, predicted.lower, predicted.upper) if part is not None]
    return [np.concatenate([part[row, :n] for part in parts], axis=1) for row, n in enumerate(data.lengths.tolist())]


def compiler() -> str:
    """Returns the C compiler: that of the environment variable CC, or the first of cc, gcc and clang.

    **Raises:** `CannotExport` if none is installed.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise CannotExport(
        "no C compiler is found, with which the export would be checked; install gcc or clang, or set CC."
    )


# Exit status of the C program after a failed simulation.
INCOMPLETE = 2


def call(words: Sequence[str], folder: Path, given: str | None = None, allowed: Sequence[int] = (0,)) -> str:
    """Runs a command, and returns its output.

    **Arguments:** `given`: its input. `allowed`: accepted exit statuses.

    **Raises:** `RuntimeError` with its error output if it fails.
    """
    done = subprocess.run(words, cwd=folder, input=given, capture_output=True, text=True, timeout=LONGEST_RUN)
    if done.returncode not in allowed:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[:2000] or done.stdout[:2000]}")
    return done.stdout


def run_c(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the compiled program for some records."""
    rows = max(len(trial.t) for trial in trials)
    call([compiler(), *FLAGS, f"-DMOST_ROWS={rows}", "main.c", "model.c", "-lm", "-o", "model"], folder)
    try:
        text = call([str(folder / "model")], folder, as_csv(exported, trials), (0, INCOMPLETE))
    finally:
        (folder / "model").unlink()
    table = list(csv.reader(io.StringIO(text)))[1:]
    values = np.array([[float(cell or "nan") for cell in row[2:]] for row in table])
    return np.split(values, np.cumsum([len(trial.t) for trial in trials])[:-1])


def as_csv(exported: Exported, trials: Sequence[CheckRecord]) -> str:
    """Returns the records as CSV for the C program."""
    one, states = exported.one, state_names(exported)
    has_starts, jumps = trials[0].start is not None, trials[0].factor is not None
    head = ["trajectory", one.system.time, *one.states, *one.inputs]
    head += [f"start {name}" for name in states] if has_starts else []
    head += [f"{action} {name}" for action in ("multiply", "add") for name in states] if jumps else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([on_one_line(name) for name in head])
    for number, trial in enumerate(trials):
        for row in range(len(trial.t)):
            cells: list[str | float] = [f"r{number}", trial.t[row], *trial.channels[row], *trial.inputs[row]]
            if trial.start is not None:
                cells += list(trial.start) if row == 0 else [np.nan] * len(states)
            if trial.factor is not None and trial.shift is not None:
                cells += [*trial.factor[row], *trial.shift[row]]
            writer.writerow(
                ["" if cell != cell else cell if isinstance(cell, str) else repr(float(cell)) for cell in cells]
            )
    return text.getvalue()


def load_module(path: Path) -> ModuleType:
    """Imports a module from a file that has just been written."""
    spec = importlib.util.spec_from_file_location(f"exported_{abs(hash(str(path)))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def run_numpy(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the written module for some records."""
    return simulate_all(load_module(folder / "model.py"), trials)


def simulate_all(module: ModuleType, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    return [
        module.simulate(
            trial.t, trial.channels, trial.inputs, start=trial.start, factor=trial.factor, shift=trial.shift
        )
        for trial in trials
    ]


def record_starts(exported: Exported, trials: Sequence[CheckRecord]) -> list[tuple[int, np.ndarray]]:
    """Returns the row at which each record starts and the states of all members there, from the NumPy module."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as name:
        path = Path(name) / "model.py"
        path.write_text(render_numpy(exported)["model.py"])
        module = load_module(path)
    with np.errstate(all="ignore"):
        return [
            module.start(trial.t, trial.channels, trial.inputs) if trial.start is None else (0, trial.start)
            for trial in trials
        ]


def difference(
    found: Sequence[Float[np.ndarray, "row column"]],
    expected: Sequence[Float[np.ndarray, "row column"]],
    columns: Sequence[str],
) -> Difference:
    """Returns the largest difference between predictions; infinite if only one of two values is finite."""
    ours, theirs = np.concatenate(list(found)), np.concatenate(list(expected))
    finite = np.isfinite(theirs)
    shares: list[float] = []
    for column in range(len(columns)):
        rows = finite[:, column]
        if (np.isfinite(ours[:, column]) != rows).any():
            shares.append(np.inf)
            continue
        values = theirs[rows, column]
        span = float(np.ptp(values)) if values.size else 0.0
        span = span if span > 1e-9 * float(np.abs(values).max(initial=0.0)) else float(np.abs(values).max(initial=0.0))
        off = np.abs(ours[rows, column] - values).max(initial=0.0)
        shares.append(off / (span or 1.0))
    worst = int(np.argmax(shares))
    return Difference(float(shares[worst]), columns[worst])
