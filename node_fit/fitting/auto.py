"""What `fit` chooses from the data if you do not: hidden states, starts, windows, inputs, the solver."""

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..data.batch import Batch, is_driven
from ..data.dataset import Dataset
from ..data.interpolation import detect_input_hold, median_step, sample_evenly
from ..data.scaling import Scaler
from ..model.fields.network import MLP, Linear, Polynomial
from ..model.initial_state.rule import First
from ..model.initial_state.stated import Stated, Steady
from ..model.initial_state.trained import Encoder, Fitted
from ..model.make_model import made_of
from ..model.observation import MeasuredStates, NetworkReadout
from ..options.options import TIGHT, Options, Training, with_tolerance
from ..sysid.linear_model import WORTH, LinearModel, linear_models

# Rows of a window: the first of these of which the longest record holds at least `LONG_RECORD`.
WINDOWS, LONG_RECORD = (128, 64), 3
# Windows in a fit: at most the first number, or about the second for short records, whose windows overlap much.
MOST_WINDOWS, FEWER_WINDOWS = 128, 64
# Rows between the beginnings of two windows: the minimum, and the maximum for short records.
NEAREST, FARTHEST_WINDOWS = 8, 32
# Windows to which a linear model is fitted: few, since that is cheaper, but with many different starts.
LINEAR_WINDOWS = 64
# Rows that a start is read from: more of them if the inputs alone tell of it.
ENCODER_ROWS, MORE_ROWS = 10, 30
# Rows that such a start has to settle in.
WASHOUT = 20
# Solver tolerance after a linear model: this share of its error [standard deviations], within these limits.
SMALL_TOLERANCE, TOLERANCES = 1 / 200, (1e-5, 1e-3)
# The tolerance of predictions is smaller by this factor.
TIGHTER = 10
DEFAULT_STEPS, CHUNK = 2000, 100
STEPS_IN_WINDOWS, CHUNK_IN_WINDOWS = 400, 20
# Records of so many rows tell of finer details, and filters of the inputs are a rough beginning: both take longer.
MANY_ROWS, MANY_STEPS = 10_000, 1000
# Fits of records with so few rows to fit depend much on the initial network: so many are tried.
FEW_ROWS, STARTS_OF_FEW_ROWS = 1_000, 3


@dataclass(frozen=True)
class Choice:
    """A key of the config, the value that was chosen for it, and why."""

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.reason}"


class Chosen(NamedTuple):
    """Complete options, what was chosen and why, and the linear model to begin with, if any."""

    options: Options
    choices: list[Choice]
    linear: LinearModel | None = None


def choose_options(options: Options, train: Dataset, validation: Dataset | None, *, look: bool = True) -> Chosen:
    """Chooses the options that are still open.

    A long record that inputs drive gets a linear state-space model, and a network beside it that begins at zero.
    Short or autonomous trajectories get fixed defaults.

    **Arguments:** `options`, `train`, `validation`: as in `fit`. `look`: whether to look for a linear model.

    **Returns:** `Chosen`.
    """
    driven, longest = is_driven(train), int(train.lengths.max())
    choices: list[Choice] = []
    kind = options.solver.inputs
    if kind == "auto":
        kind, reason = detect_input_hold(train) if driven else ("linear", "")
        choices += [Choice("solver.inputs", kind, reason)] if driven else []
    window = options.training.window
    enough = (rows for rows in WINDOWS if longest >= LONG_RECORD * rows and reads_windows(options))
    fitting = next(enough, None) if window == "auto" else window
    look = look and train.events is None  # A linear model of the whole record knows no jumps.
    if not (look and driven and fitting is not None and longest >= LONG_RECORD * fitting):
        if look and driven and window is None and options.hidden == "auto" and longest >= LONG_RECORD * WINDOWS[-1]:
            choices.append(Choice("hidden", 0, "hidden states are only chosen for fits in windows (train.window)"))
        return Chosen(with_solvers(close_options(options), kind, driven), choices)
    if window == "auto":
        window = fitting
        choices.append(Choice("train.window", window, f"the longest record has {longest} rows"))
    by_filters = made_of(options.observation) is NetworkReadout
    rows = int(train.lengths.sum())
    options = replace(
        options, training=in_windows(options.training, window, rows, many=by_filters or rows >= MANY_ROWS)
    )
    if options.starts == "auto":
        starts = STARTS_OF_FEW_ROWS if rows <= FEW_ROWS and validation is not None else 1
        options = replace(options, starts=starts)
        if starts > 1:
            choices.append(Choice("starts", starts, f"{rows} rows to fit are few; the best on the validation data"))
    linear, found = choose_linear(options, train, validation, kind)
    if linear is not None and options.solver.rtol is None:
        rtol = float(f"{np.clip(linear.error * SMALL_TOLERANCE, *TOLERANCES):.1g}")
        options = replace(options, solver=replace(options.solver, rtol=rtol))
        if options.evaluation is None:
            tight = max(rtol / TIGHTER, TIGHT[options.kind])
            options = replace(options, evaluation=replace(with_tolerance(options.solver, tight), atol=tight))
        found.append(Choice("solver.rtol", rtol, "well below the error of the linear model"))
    options = with_solvers(options, kind, driven)
    hidden = (linear.hidden if linear else 0) if options.hidden == "auto" else options.hidden
    start, field = options.start, options.field
    if start == "auto":
        rows, washout = (MORE_ROWS, WASHOUT) if by_filters else (ENCODER_ROWS, 0)
        start = functools.partial(Encoder, rows=rows, before=True, washout=washout)
        found.append(Choice("start", "encoder", f"a start is read from the {rows} rows up to it"))
    if made_of(field) is MLP and keyword(field, "linear") is None and not has_angles(options, train):
        field = functools.partial(field, linear=True)
    return Chosen(replace(options, hidden=hidden, start=start, field=field), choices + found, linear)


def reads_windows(options: Options) -> bool:
    """Whether the rule for starts gives the start of any window, so that windows may be chosen."""
    if isinstance(options.start, str):
        return True
    rule = made_of(options.start)
    if rule is First:
        return keyword(options.start, "absent") is None or options.hidden in (0, "auto")
    return rule not in (Fitted, Stated, Steady)


def with_solvers(options: Options, kind: str, driven: bool) -> Options:
    """The options with complete solvers."""
    evaluation = None if options.evaluation is None else options.evaluation.for_data(driven=driven, inputs=kind)
    return replace(options, solver=options.solver.for_data(driven=driven, inputs=kind), evaluation=evaluation)


def close_options(options: Options) -> Options:
    """The options with the defaults of short and autonomous trajectories."""
    training = options.training
    return replace(
        options,
        hidden=0 if options.hidden == "auto" else options.hidden,
        starts=1 if options.starts == "auto" else options.starts,
        start=First if options.start == "auto" else options.start,
        training=replace(
            training,
            steps=training.steps or DEFAULT_STEPS,
            chunk_steps=training.chunk_steps or CHUNK,
            window=None if training.window == "auto" else training.window,
        ),
    )


def in_windows(training: Training, window: int | None, rows: int, *, many: bool) -> Training:
    """The training of a long driven record in windows of which there are not too many, in few steps or in many."""
    return replace(
        training,
        steps=training.steps or (MANY_STEPS if many else STEPS_IN_WINDOWS),
        chunk_steps=training.chunk_steps or CHUNK_IN_WINDOWS,
        window=window,
        stride=training.stride or (None if window is None else stride_of(rows)),
    )


def stride_of(rows: int) -> int:
    """Rows between the beginnings of two windows, in records with this many rows."""
    return max(NEAREST, min(FARTHEST_WINDOWS, rows // FEWER_WINDOWS), -(-rows // MOST_WINDOWS))


def choose_linear(
    options: Options, train: Dataset, validation: Dataset | None, kind: str
) -> tuple[LinearModel | None, list[Choice]]:
    """The linear model that validates best, if the field has a place for one; uneven rows are interpolated for it."""
    maker = made_of(options.field)
    measured = made_of(options.observation) is MeasuredStates
    if maker not in (MLP, Linear, Polynomial) or keyword(options.field, "linear") is False or not measured:
        return None, []
    if has_angles(options, train):  # which are no linear states
        return None, []
    names = () if isinstance(options.hidden, int | str) else options.hidden
    limits = options.scaling.limits((*train.states, *names), train.inputs)
    scaler = Scaler.from_dataset(train, bounds=limits, identity=not options.scaling.affine)
    step = median_step(train)
    train = sample_evenly(train, step, kind)
    validation = None if validation is None else sample_evenly(validation, step, kind)
    rows = (options.training.budget.window or WINDOWS[0]) + ENCODER_ROWS - 1
    stride = max(int(train.lengths.sum()) // LINEAR_WINDOWS, 1)
    windows = Batch.from_dataset(train.windows(rows, stride).sample(LINEAR_WINDOWS), scaler, ENCODER_ROWS)
    held = windows if validation is None else Batch.from_dataset(validation, scaler, ENCODER_ROWS)
    count = None if options.hidden == "auto" else options.hidden if isinstance(options.hidden, int) else len(names)
    models = list(linear_models(windows, held, train, scaler, kind, count))
    if not models:
        return None, []
    best = simplest_model(models)
    what = "training" if validation is None else "validation"
    if count is not None:
        text = f"NRMSE on {what} data of a linear model with {count} hidden states"
        return best, [Choice("linear", f"{best.error:.2g}", text)]
    tried = ", ".join(f"{model.hidden}: {model.judged:.2g}" for model in models)
    text = f"NRMSE of linear models by hidden states ({tried}), on {what} data and by cross-validation"
    return best, [Choice("hidden", best.hidden, text)]


def has_angles(options: Options, train: Dataset) -> bool:
    return bool(options.scaling.angles or train.angles)


def simplest_model(models: list[LinearModel]) -> LinearModel:
    """The model with the fewest states among those that are about as good as the best."""
    limit = min(model.judged for model in models) * (1 + WORTH)
    return next(model for model in models if model.judged <= limit)


def keyword(maker: Any, name: str) -> Any:
    """The keyword argument of a partial by this name; None if it has none."""
    return maker.keywords.get(name) if isinstance(maker, functools.partial) else None
