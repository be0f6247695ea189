"""Trials of an exported model: records, what its files predict of them when run, and how far they are off."""

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

# Of more trajectories and rows, these are tried.
MOST_CHECKED, MOST_CHECKED_ROWS = 12, 2000
# Tolerances of the solve that an export is compared with; implicit methods get no tighter ones in their steps.
TIGHTEST = {True: (1e-10, 1e-12), False: (1e-9, 1e-11)}
# Predictions of such a tolerance are as good as that solve.
TIGHT_ENOUGH = 1e-9
LONGEST_RUN = 300  # [s]
FLAGS = ("-std=c99", "-O2")


@dataclass(frozen=True)
class CheckRecord:
    """A record as an exported model takes it, all in the user's units.

    - `name`: of the trajectory.
    - `t`, `channels`, `inputs`: times, measured channels (NaN where not measured) and inputs of its rows.
    - `start`: the states of all members at the first row; None if the exported model finds them.
    - `factor`, `shift`: of the states of all members just after each row; None without events.
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
    """How far two predictions are apart, as a share of the range of the column in which they are furthest apart.

    - `largest`, `column`: that share, and the name of the column.
    """

    largest: float
    column: str


def in_double(model: NeuralODE | Ensemble) -> NeuralODE | Ensemble:
    """The model in double precision, with a solver so tight that its own error does not count."""
    with scope("x64"):
        own = carry(model, dtype_of("x64"))
        members = own.members if isinstance(own, Ensemble) else (own,)
        tight = [replace(member, solver=tightened(member.solver)) for member in members]
        return replace(own, members=tuple(tight)) if isinstance(own, Ensemble) else tight[0]


def with_lines_for_cubics(model: NeuralODE | Ensemble) -> NeuralODE | Ensemble:
    """The model with inputs on lines between rows where they were on cubics, which need the rows around those two."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    if members[0].solver.interpolation != "cubic":
        return model
    found = tuple(replace(member, solver=replace(member.solver, inputs="linear")) for member in members)
    return replace(model, members=found) if isinstance(model, Ensemble) else found[0]


def tightened(solver: Solver) -> Solver:
    if solver.is_exponential:  # Other targets solve the field itself.
        solver = replace(solver, method="tsit5", stepping="adaptive")
    rtol, atol = TIGHTEST[solver.method in EXPLICIT]
    return replace(solver, rtol=rtol, atol=atol, max_steps=max(solver.max_steps, 100_000))


def is_tight(model: NeuralODE | Ensemble) -> bool:
    """Whether predictions of the model itself are as good as those of `in_double`."""
    rtol = model.typical.solver.rtol
    if rtol is None or isinstance(rtol, tuple) or np.ndim(rtol):
        return False
    return precision_of(model) == "x64" and float(rtol) <= TIGHT_ENOUGH


def select_rows(data: Dataset) -> Dataset:
    """A few trajectories of the data, and their first rows, all of which count."""
    some = data.sample(MOST_CHECKED)
    rows = min(int(some.lengths.max()), MOST_CHECKED_ROWS)
    if rows < some.ts.shape[1]:
        some = some.until(some.ts[:, rows - 1])
    return replace(some, scored=some.valid)


def made_up(model: NeuralODE) -> Dataset:
    """A record for a model without data: it starts at the mean, and its inputs swing around theirs."""
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
    """The records of a dataset.

    **Arguments:** `model`: as `with_given_starts` and `in_double` give it.
    """
    data = replace(data, angles={}) if data.angles else data
    starts = given_starts(model)
    found: list[CheckRecord] = []
    for row, length in enumerate(data.lengths.tolist()):
        factor, shift = jumps_of(model, data, row, length)
        found.append(
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
    return found


class Given(AbstractStart):
    """The starts of some trajectories, which are known.

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
    """A model whose starts are those that it fits to these trajectories; the model itself if it does not fit them."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    if not isinstance(members[0].start, Fitted):
        return model
    precision = precision_of(model)
    found: list[NeuralODE] = []
    with scope_of(model):
        for number, member in enumerate(members):
            needed = member.start.needed(member.batch(data))
            added = model.vary_rows(needed) if isinstance(model, Ensemble) else None
            own = needed if added is None else add_to_rows(needed, *(each[number] for each in added))
            batch = carry(own, dtype_of(precision))
            values = eqx.filter_jit(NeuralODE.estimated_start)(member, batch)
            found.append(replace(member, start=Given(member.start.guess, values)))
    return replace(model, members=tuple(found)) if isinstance(model, Ensemble) else found[0]


def given_starts(model: NeuralODE | Ensemble) -> Float[np.ndarray, "trajectory state"] | None:
    """The known starts of all members in the user's units; None of another rule, which is exported."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    starts = [(member.system.scaler, member.start.values) for member in members if isinstance(member.start, Given)]
    return np.concatenate([s.unscale_states(np.asarray(z)) for s, z in starts], axis=1) if starts else None


def jumps_of(
    model: NeuralODE | Ensemble, data: Dataset, row: int, length: int
) -> tuple[Float[np.ndarray, "row state"] | None, Float[np.ndarray, "row state"] | None]:
    """Factors and shifts of all states of all members after the rows of a trajectory."""
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
    """What node_fit predicts of each trajectory, in the order of `Exported.columns`."""
    found = model.bands(data, level=level)
    parts = [part for part in (found.ys, found.lower, found.upper) if part is not None]
    return [np.concatenate([part[row, :n] for part in parts], axis=1) for row, n in enumerate(data.lengths.tolist())]


def compiler() -> str:
    """The C compiler: that of the variable CC, or the first of cc, gcc and clang.

    **Raises:** `CannotExport` if there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise CannotExport(
        "no C compiler is found, with which the export would be checked; install gcc or clang, or set CC."
    )


# What the program in C returns if a record can't be simulated to its end.
INCOMPLETE = 2


def call(words: Sequence[str], folder: Path, given: str | None = None, allowed: Sequence[int] = (0,)) -> str:
    """The output of a command.

    **Arguments:** `given`: its input. `allowed`: what it may return.

    **Raises:** `RuntimeError` with what it says if it fails.
    """
    done = subprocess.run(words, cwd=folder, input=given, capture_output=True, text=True, timeout=LONGEST_RUN)
    if done.returncode not in allowed:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[:2000] or done.stdout[:2000]}")
    return done.stdout


def run_c(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """What the compiled program predicts of some records."""
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
    """Records as the program in C reads them."""
    one, states = exported.one, state_names(exported)
    given, jumps = trials[0].start is not None, trials[0].factor is not None
    head = ["trajectory", one.system.time, *one.states, *one.inputs]
    head += [f"start {name}" for name in states] if given else []
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
    """The module of a file that has just been written."""
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
    """What the written module predicts of some records."""
    return simulate_all(load_module(folder / "model.py"), trials)


def simulate_all(module: ModuleType, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    return [
        module.simulate(each.t, each.channels, each.inputs, start=each.start, factor=each.factor, shift=each.shift)
        for each in trials
    ]


def record_starts(exported: Exported, trials: Sequence[CheckRecord]) -> list[tuple[int, np.ndarray]]:
    """The row at which each record starts, and the states of all members there, as the module in NumPy finds them."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as name:
        path = Path(name) / "model.py"
        path.write_text(render_numpy(exported)["model.py"])
        module = load_module(path)
    with np.errstate(all="ignore"):
        return [
            module.start(each.t, each.channels, each.inputs) if each.start is None else (0, each.start)
            for each in trials
        ]


def difference(
    found: Sequence[Float[np.ndarray, "row column"]],
    expected: Sequence[Float[np.ndarray, "row column"]],
    columns: Sequence[str],
) -> Difference:
    """The largest difference between predictions; infinite where one is finite and the other is not."""
    ours, theirs = np.concatenate(list(found)), np.concatenate(list(expected))
    known = np.isfinite(theirs)
    shares: list[float] = []
    for column in range(len(columns)):
        at = known[:, column]
        if (np.isfinite(ours[:, column]) != at).any():
            shares.append(np.inf)
            continue
        values = theirs[at, column]
        span = float(np.ptp(values)) if values.size else 0.0
        span = span if span > 1e-9 * float(np.abs(values).max(initial=0.0)) else float(np.abs(values).max(initial=0.0))
        off = np.abs(ours[at, column] - values).max(initial=0.0)
        shares.append(off / (span or 1.0))
    worst = int(np.argmax(shares))
    return Difference(float(shares[worst]), columns[worst])
