"""Exports of a fitted model, checked before they are written."""

import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..data.dataset import Dataset, check_data
from ..fitting.result import Fit
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..model.observation import FormulaReadout, counted_channels
from ..model.one_trajectory import of_trajectory, records_of
from ..runtime.serialization import Json, __version__
from ..runtime.validation import check_argument, check_choice, check_path
from ..solver.methods import EXPLICIT, EXPONENTIAL
from ..solver.solver import Solver
from ..storage.files import LEAST_ROOM, check_room, write_file
from .c import COMPILE, render_c, state_names, templates_with
from .fmu import refusals_of_fmu, render_fmu, run_fmu
from .formulas import refusals_of_formulas, render_formulas, run_formulas
from .functions import Exported, Precision, Steps, export_functions
from .graphs import refusals_of_onnx, refusals_of_stablehlo, render_onnx, render_stablehlo, run_onnx, run_stablehlo
from .numpy_target import render_numpy
from .sbml import refusals_of_sbml, render_sbml, run_sbml
from .tracing import CannotExport
from .trials import (
    CheckRecord,
    Difference,
    difference,
    in_double,
    is_tight,
    load_module,
    make_up_record,
    predicted_columns,
    run_c,
    run_numpy,
    select_rows,
    simulate_all,
    trials_of,
    with_given_starts,
    with_lines_for_cubics,
)

EXPORT_TOLERANCES: dict[str, float] = {"double": 1e-6, "float": 1e-4}
# Maximum error of the fixed steps, as a share of the tolerance.
SHARE_OF_STEPS = 0.2
# Maximum number of doublings of the number of steps between two rows.
MOST_DOUBLINGS = 9
MOST_RETRIES = 2

Files = dict[str, bytes]


Render = Callable[[Exported, Sequence[CheckRecord]], Mapping[str, str | bytes]]


class ExportTarget(NamedTuple):
    """An export target.

    - `render`: returns the files by name.
    - `simulate`: returns predictions from the files in a folder for some records.
    - `refusals`: returns sentences that name unsupported features of a model and its records.
    - `precisions`: supported precisions.
    - `packages`: packages required by the target and its check.
    - `how`: usage instructions for the README.
    - `cubics`: whether it supports cubic inputs, which need the rows around an interval; otherwise inputs are linear.
    - `bands`: whether it supports bands; otherwise an ensemble drawn around a fit is exported as that fit.
    - `intervals`: whether it shows the confidence intervals of constants.
    """

    render: Render
    simulate: Callable[[Path, Exported, Sequence[CheckRecord]], list[np.ndarray]]
    refusals: Callable[[Exported, Sequence[CheckRecord]], list[str]]
    precisions: tuple[Precision, ...]
    packages: tuple[str, ...]
    how: str
    cubics: bool = True
    bands: bool = True
    intervals: bool = False


def nothing_refused(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    return []


HOW_C = f"""\
    {COMPILE}
    ./model < record.csv > predicted.csv

`model.h` declares the functions for your own program; `model.c` is all that it needs. For a microcontroller, compile
`model.c` alone with its own compiler, such as `arm-none-eabi-gcc -std=c99 -O2 -mcpu=cortex-m4 -mfloat-abi=hard
-mfpu=fpv4-sp-d16 -c model.c` for one that computes in floats (export with precision=float)."""
HOW_NUMPY = """\
    from model import simulate
    ys = simulate(t, channels, inputs)"""

HOW_FMU = """\
    from fmpy import simulate_fmu
    simulate_fmu("model_fmi2.fmu", start_values={...}, input=...)

`model_fmi2.fmu` and `model_fmi3.fmu` are functional mock-up units of versions 2.0 and 3.0, for Model Exchange and
Co-Simulation. The variables `state NAME` hold the states at the start as parameters; by default they are those of the
first record. In Co-Simulation inputs are held within a step, unless the importer gives their derivatives (2.0)."""

HOW_STABLEHLO = """\
    import jax
    jax.config.update("jax_enable_x64", True)  # of programs in double precision
    program = jax.export.deserialize(open("simulate.stablehlo", "rb").read())
    program.call(t, channels, inputs, factor, shift)

The arguments have an axis for trajectories in front, of any length, and `simulate` takes any number of rows: `t` of
shape (batch, row), `channels` (NaN where not measured), `inputs`, and the factors (1) and shifts (0) of the states
just after a row. `field`, `step` and `observe` take single rows. The first row has to be measured."""

HOW_ONNX = """\
    import onnxruntime
    step = onnxruntime.InferenceSession("step.onnx")
    step.run(None, {"t": t, "h": h, "y": y, "u": u, "v": v})

Every argument has an axis for a batch in front, of any length: `t` and `h` of shape (batch, 1), the states `y` of shape
(batch, state), and the inputs `u` at the beginning of a step and `v` at its end. `step` goes on by `h`, which should be
no longer than the steps below; `field` gives the time derivatives, and `observe` what is predicted at some states."""
HOW_FORMULAS = """\
    from formulas import CONSTANTS, RATES

`RATES` holds the time derivative of each state as a formula, `CONSTANTS` the fitted constants. `formulas.tex` is LaTeX
to `\\input` (package amsmath): the equations with symbols and with numbers, units, and constants with intervals."""

HOW_SBML = """\
    import roadrunner  # or COPASI, Tellurium, AMICI, or another reader of SBML
    roadrunner.RoadRunner("model.xml").simulate(0, 10)

`model.xml` is SBML of Level 3 Version 2: states are parameters with rate rules, at first those of the first record, and
inputs are parameters that do not move; let your simulator set them. `python -m node_fit data=sbml data.path=model.xml`
fits it again."""


def without_trials(render: Callable[[Exported], Mapping[str, str | bytes]]) -> Render:
    """Adapts a renderer that needs no records."""
    return lambda exported, _: render(exported)


BOTH: tuple[Precision, ...] = ("double", "float")
TARGETS: dict[str, ExportTarget] = {
    "c": ExportTarget(without_trials(render_c), run_c, nothing_refused, BOTH, (), HOW_C),
    "fmu": ExportTarget(render_fmu, run_fmu, refusals_of_fmu, ("double",), ("fmpy",), HOW_FMU, cubics=False),
    "stablehlo": ExportTarget(
        render_stablehlo, run_stablehlo, refusals_of_stablehlo, BOTH, ("flatbuffers",), HOW_STABLEHLO
    ),
    "onnx": ExportTarget(
        render_onnx, run_onnx, refusals_of_onnx, BOTH, ("onnx", "onnxruntime"), HOW_ONNX, cubics=False
    ),
    "sympy": ExportTarget(
        render_formulas,
        run_formulas,
        refusals_of_formulas,
        ("double",),
        ("sympy",),
        HOW_FORMULAS,
        bands=False,
        intervals=True,
    ),
    "sbml": ExportTarget(render_sbml, run_sbml, refusals_of_sbml, ("double",), ("libsbml",), HOW_SBML, bands=False),
    "numpy": ExportTarget(without_trials(render_numpy), run_numpy, nothing_refused, ("double",), (), HOW_NUMPY),
}


LINES_FOR_CUBICS = (
    "inputs are on a line from row to row, since a step sees no other rows; the fit has them on a cubic, and the "
    "differences are from its predictions with lines"
)


@dataclass(frozen=True)
class Export:
    """The result of an export, with its differences from node_fit's predictions.

    - `target`, `path`: the target, and the folder.
    - `files`: file names with their sizes [bytes].
    - `difference`: the largest difference from the model in double precision, solved with tight tolerances, as a share
      of the range of the column.
    - `from_predict`: the same relative to `predict`, which has an error of its own in single precision.
    - `steps`: the fixed steps. `tolerance`: the maximum difference. `rows`: number of rows compared.
    - `lines_for_cubics`: whether inputs are interpolated linearly although the fit uses cubics; predictions with linear
      interpolation were compared.
    """

    target: str
    path: Path
    files: dict[str, int]
    difference: Difference
    from_predict: Difference
    steps: Steps
    tolerance: float
    rows: int
    lines_for_cubics: bool = False

    def __str__(self) -> str:
        size = sum(self.files.values()) / 1000
        far, plain = self.difference, self.from_predict
        return (
            f"{self.target}: {', '.join(self.files)} in {self.path} ({size:.3g} kB)\n"
            f"largest difference from node_fit.predict: {plain.largest:.2g} of the range of {plain.column}, over "
            f"{self.rows} rows\n"
            f"of it from the model in double precision, solved tightly: {far.largest:.2g} (tolerance "
            f"{self.tolerance:.0e})\n{describe_steps(self.steps)}"
            + (f"\n{LINES_FOR_CUBICS}" if self.lines_for_cubics else "")
        )


def choose_trajectory(
    model: NeuralODE | Ensemble, data: Dataset | None, trajectory: str | None
) -> tuple[NeuralODE | Ensemble, Dataset | None]:
    """Returns the model and records to export: those of one trajectory if each has its own constants.

    **Raises:** `ValueError` if this trajectory is not named, or the data have other channels.
    """
    if data is not None:
        check_data(data, "data")
    if trajectory is not None:
        model, data = of_trajectory(model, trajectory), None if data is None else records_of(data, trajectory)
    elif names := model.typical.scaler.trajectories:
        raise CannotExport(
            f"each trajectory has constants of its own; choose one to write, such as trajectory={names[0]!r} "
            f"(--trajectory {names[0]})."
        )
    elif data is None and model.typical.local:
        by = model.typical.local[0].by
        raise CannotExport(f"constants are local by {by!r}; give data, whose values of it the check can use.")
    if data is not None:
        model.check_channels(data)
    return model, data


def describe_interpolation(exported: Exported) -> str:
    """Describes the inputs between rows: all together if they are alike, else each by name."""
    ways = {
        "hold": "held from row to row",
        "linear": "on a line from row to row",
        "cubic": "on a cubic from row to row",
    }
    kinds = dict.fromkeys(exported.input_kinds)
    if len(kinds) == 1:
        return ways[next(iter(kinds))]
    kind_of = dict(zip(exported.one.inputs, exported.input_kinds, strict=True))
    names = {kind: " and ".join(name for name in kind_of if kind_of[name] == kind) for kind in kinds}
    return "; ".join(f"{names[kind]} {ways[kind]}" for kind in kinds)


def describe_steps(steps: Steps) -> str:
    names = {"tsit5": "Tsitouras' method of order 5", "radau5": "Radau IIA of order 5"}
    longest = "" if np.isinf(steps.longest) else f", none longer than {steps.longest:.6g}"
    return f"steps: {names[steps.method]}, at least {steps.fewest} between two rows{longest}"


def export(
    model: Fit | NeuralODE | Ensemble,
    target: str,
    path: str | Path,
    *,
    data: Dataset | None = None,
    precision: Precision = "double",
    tolerance: float | None = None,
    level: float = 0.9,
    confidence: Json | None = None,
    trajectory: str | None = None,
    overwrite: bool = False,
) -> Export:
    """Exports a model to another platform, and checks that its predictions match node_fit's.

    ```python
    print(node_fit.export(fit, "c", "pump_in_c"))
    ```

    **Arguments:**

    - `model`: a fit, or a model of any kind, loaded or made by hand.
    - `target`: `c`, `numpy`, `stablehlo`, `onnx`, `fmu`, `sympy` or `sbml`; see the page "Use a model elsewhere".
    - `path`: the folder, created if it does not exist.
    - `data`: records used to check the export and to choose the steps; by default the training data of a fit. A model
      without data is checked on a synthetic record.
    - `precision`: precision of the exported model.
    - `tolerance`: the maximum difference from node_fit's predictions, as a share of the range of each channel; by
      default 1e-6 in double precision, 1e-4 in float.
    - `level`: level of an ensemble's bands.
    - `confidence`: confidence intervals of the constants, as in `summary.json`; by default `Fit.confidence` of a fit.
    - `trajectory`: the trajectory whose model is exported, if each has its own constants (`field.local`).
    - `overwrite`: whether to replace files in the folder.

    **Returns:** an `Export`, with the files and their differences from node_fit's predictions.

    **Raises:** `ValueError` that names an unsupported feature, or the difference if it exceeds the tolerance; nothing
    is written then.
    """
    check_argument("model", model, Fit | NeuralODE | Ensemble, "a Fit, a NeuralODE or an Ensemble")
    check_choice("target", target, tuple(TARGETS))
    chosen = TARGETS[target]
    check_choice("precision", precision, chosen.precisions)
    check_installed(target, chosen.packages)
    folder = Path(path)
    check_free(folder, ("README.md",), overwrite)
    if isinstance(model, Fit):
        data = model.data.get("train") if data is None else data
        confidence = confidence_of(model) if confidence is None and chosen.intervals else confidence
        model = model.model
    if isinstance(model, Ensemble) and model.center is not None and not chosen.bands:
        model = model.center
    model, data = choose_trajectory(model, data, trajectory)
    fitted, model = model, model if chosen.cubics else with_lines_for_cubics(model)
    check_readout(model.typical)
    tolerance = EXPORT_TOLERANCES[precision] if tolerance is None else tolerance
    records = select_rows(make_up_record(model.typical) if data is None else data)
    tight = in_double(with_given_starts(model, records))
    trials = trials_of(tight, records)
    first = export_functions(tight, "double", longest_steps(tight.typical.solver, trials), level)
    if refused := chosen.refusals(first, trials):
        raise CannotExport(f"{target} can't carry this model: {'; '.join(refused)}.")
    steps = choose_steps(first, trials, SHARE_OF_STEPS * tolerance)
    expected = predicted_columns(tight, records, level)
    plain = expected if is_tight(model) else predicted_columns(model, records, level)
    exported = replace(export_functions(model, precision, steps, level), confidence=confidence or {})
    files = as_bytes(chosen.render(exported, trials))
    check_free(folder, tuple(files), overwrite)
    predictions = simulate_files(chosen, files, exported, trials)
    for _ in range(MOST_RETRIES):
        if difference(predictions, expected, exported.columns).largest <= tolerance:
            break
        steps = replace(steps, longest=steps.longest / 2, fewest=2 * steps.fewest)
        exported = replace(exported, steps=steps)
        files = as_bytes(chosen.render(exported, trials))
        predictions = simulate_files(chosen, files, exported, trials)
    far, off = difference(predictions, expected, exported.columns), difference(predictions, plain, exported.columns)
    if not far.largest <= tolerance:
        raise CannotExport(
            f"the exported model differs from node_fit's predictions by {far.largest:.2g} of the range of "
            f"{far.column!r}, more than tolerance={tolerance:g}; a larger tolerance accepts it."
        )
    rows = sum(len(trial.t) for trial in trials)
    sizes = {name: len(content) for name, content in files.items()}
    done = Export(target, folder, sizes, far, off, steps, tolerance, rows, model is not fitted)
    files["README.md"] = render_readme(done, exported, chosen.how, data).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, content)
    return done


def check_readout(model: NeuralODE) -> None:
    """Rejects channels that are counted between rows.

    **Raises:** `CannotExport` that names the channel.
    """
    if not model.counts:
        return
    assert isinstance(model.observation, FormulaReadout)
    counted = sorted(counted_channels(dict(model.observation.formulas.texts)))
    raise CannotExport(
        f"the channel {counted[0]!r} is counted between rows (increase in observation=formula), and exported models "
        "observe single rows; export the total, and take its differences."
    )


def confidence_of(fit: Fit) -> Json:
    """Returns the confidence intervals of a fit's constants; empty if they can't be computed."""
    try:
        return fit.confidence().as_dict()
    except ValueError:
        return {}


def check_installed(target: str, packages: Sequence[str]) -> None:
    """Rejects a target whose packages are not installed.

    **Raises:** `CannotExport` that names the first missing package.
    """
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise CannotExport(f'{target} needs {name}, which is not installed: pip install "node_fit[export]".')


def as_bytes(files: Mapping[str, str | bytes]) -> Files:
    return {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}


def check_free(folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Rejects names of existing files, unless `overwrite` is set.

    **Raises:** `ValueError` that names the first one.
    """
    check_path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder.")
    taken = [name for name in names if (folder / name).exists()]
    if taken and not overwrite:
        raise ValueError(f"{folder / taken[0]} exists; choose another folder, or replace it with overwrite.")
    existing = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    check_room(existing, LEAST_ROOM, "--out FOLDER")


def simulate_files(
    target: ExportTarget, files: Files, exported: Exported, trials: Sequence[CheckRecord]
) -> list[np.ndarray]:
    """Returns predictions from the files for the records, run in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as name:
        folder = Path(name)
        for filename, content in files.items():
            (folder / filename).parent.mkdir(parents=True, exist_ok=True)
            (folder / filename).write_bytes(content)
        return target.simulate(folder, exported, trials)


def longest_steps(solver: Solver, trials: Sequence[CheckRecord]) -> Steps:
    """Returns one step between two rows; uneven rows of a stiff system do not imply a maximum step size."""
    if solver.method not in (*EXPLICIT, EXPONENTIAL):
        return Steps("radau5", np.inf, 1)
    gaps = np.concatenate([np.diff(trial.t) for trial in trials])
    return Steps("tsit5", float(np.median(gaps)) if gaps.size else 1.0, 1)


def choose_steps(exported: Exported, trials: Sequence[CheckRecord], share: float) -> Steps:
    """Returns fixed steps with an error of at most a share of each column's range.

    Steps are halved until the predictions change by less than that.

    **Arguments:** `exported`: the model in double precision, with `longest_steps`.
    """
    steps, explicit = exported.steps, exported.steps.method == "tsit5"
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as name:
        path = Path(name) / "model.py"
        path.write_text(render_numpy(exported)["model.py"])
        module = load_module(path)
    before = None
    for _ in range(MOST_DOUBLINGS + 1):
        vars(module).update(LONGEST_STEP=steps.longest, FEWEST_STEPS=steps.fewest)
        predicted = simulate_all(module, trials)
        if before is not None and difference(before, predicted, exported.columns).largest <= share:
            return Steps(steps.method, 2 * steps.longest, max(steps.fewest // 2, 1))
        before = predicted
        steps = replace(steps, longest=steps.longest / 2, fewest=steps.fewest if explicit else 2 * steps.fewest)
    raise CannotExport(
        f"no fixed steps give this accuracy: with {2**MOST_DOUBLINGS} between two rows, the predictions still move by "
        f"more than {share:.1g} of their range. A stiff model needs solver=kvaerno5; or raise the tolerance."
    )


def render_readme(done: Export, exported: Exported, how: str, data: Dataset | None) -> str:
    """Renders the README of an export.

    **Arguments:** `data`: data whose ranges are listed; None without data.
    """
    one = exported.one
    sources = templates_with({"code": code, "json": json.dumps})

    def row(name: str, kind: str, values: np.ndarray) -> tuple[str, str, str, str, str]:
        finite = values[np.isfinite(values)]
        low, high = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("", "")
        return name, kind, exported.units.get(name, ""), low, high

    def values(table: np.ndarray, column: int) -> np.ndarray:
        return table[data.valid][:, column] if data is not None else np.zeros(0)

    ts, ys, us = (data.ts[..., None], data.ys, data.us) if data is not None else (np.zeros(0),) * 3
    rows = [row(one.system.time, "time", values(ts, 0))]
    rows += [row(name, "channel", values(ys, column)) for column, name in enumerate(one.states)]
    rows += [row(name, "input", values(us, column)) for column, name in enumerate(one.inputs)]
    rows += [(name, "state", "", "", "") for name in state_names(exported) if name not in one.states]
    return sources.get_template("README.md").render(
        target=done.target,
        version=__version__,
        digest=exported.digest,
        precision=exported.precision,
        how=how,
        rows=rows,
        ranges=data is not None,
        columns=exported.columns,
        steps=describe_steps(done.steps),
        tolerance=f"{done.tolerance:g}",
        largest=f"{done.difference.largest:.2g}",
        plain=f"{done.from_predict.largest:.2g}",
        compared=done.rows,
        given=exported.needs_given_start,
        start=one.start.given,
        interpolation=describe_interpolation(exported)
        + (" (on a cubic in node_fit, and on a line in what was compared)" if done.lines_for_cubics else ""),
        driven=exported.is_driven,
        members=len(exported.members),
        level=exported.level,
        time=one.system.time,
    )


def code(text: str) -> str:
    """Returns a name as Markdown code on one line, with special characters escaped."""
    shown = "".join(c if c.isprintable() and c not in "`|\\<>" else f"\\u{ord(c):04x}" for c in text)
    return f"`{shown}`"
