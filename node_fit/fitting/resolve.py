"""Resolves every `auto` option of `fit` from the other options and the facts of the data.

`resolve` is pure. Anything that needs computation is either an argument, such as the identified linear model, or a
later decision named in the result, such as the choice among several weights of the prior.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import equinox as eqx
import numpy as np

from ..data.facts import Facts
from ..data.inputs import Interpolations
from ..model.fields.network import MLP, LogTimeMLP, SecondOrder
from ..model.initial_state.rule import First
from ..model.initial_state.trained import Encoder, Fitted
from ..model.make_model import MakeStart, is_equations_alone, is_plain, keyword, maker_class, trait_of
from ..model.observation import DirectReadout
from ..objectives.objective import Number, Penalty
from ..optimizers.gradient import LBFGS
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..options.options import TIGHT, Options, Training, with_tolerance
from ..options.recipes import DIRECT_RECIPE, Recipe, is_default, is_direct
from ..solver.solver import Solver
from ..sysid.linear_model import LinearModel

# Rows of a window: the first of these sizes that fits at least `LONG_RECORD` times into the longest record.
WINDOWS, LONG_RECORD = (128, 64), 3
# Maximum number of windows in a fit, and the approximate number for short records, whose windows overlap heavily.
MOST_WINDOWS, FEWER_WINDOWS = 128, 64
# Minimum stride between windows, and its maximum for short records [rows].
NEAREST, FARTHEST_WINDOWS = 8, 32
# Rows from which the encoder reads an initial state, their number if only the inputs inform it, and washout rows.
ENCODER_ROWS, MORE_ROWS, WASHOUT = 10, 30, 20
# Solver tolerance as a fraction of the linear model's error [standard deviations], and its limits.
SMALL_TOLERANCE, TOLERANCES = 1 / 200, (1e-5, 1e-3)
# Factor by which the tolerance of predictions is smaller.
TIGHTER = 10
DEFAULT_STEPS, CHUNK = 2000, 100
STEPS_IN_WINDOWS, CHUNK_IN_WINDOWS = 400, 20
# With at least this many rows, finer details can be learned, which takes more steps; so does starting from filters.
MANY_ROWS, MANY_STEPS = 10_000, 1000
# With at most this many rows, results depend on the initial weights; run this many restarts.
FEW_ROWS, STARTS_OF_FEW_ROWS = 1_000, 3
# A record with fewer measured values is short.
SHORT = 200
# Noise, as a fraction of the spread, above which a single row is too noisy for an initial state; the numbers of
# trajectories and the minimum rows per trajectory for which this applies.
NOISY, SEVERAL, ROWS_OF_EACH = 0.03, range(4, 201), 30
# Maximum number of trajectories whose initial states are fitted along with constants; more would take too long.
MAX_FITTED_STARTS = 100
# Weights of the prior beside a linear model per fitted value, and the number of values beyond which they stop growing.
RIDGES, MOST_PRIOR_VALUES = (3e-5, 2e-4, 1.5e-3, 1e-2), 1_000
# Weight of the prior for a network with more weights than a short record has values.
SHORT_RIDGE = 0.01


# The default method, and the method for stiff systems.
USUAL_METHOD, STIFF_METHOD = "tsit5", "kvaerno5"


@dataclass(frozen=True)
class Choice:
    """A config key, the value chosen for it, and the reason.

    - `is_advised`: whether advice can suggest other values, since this one was not validated on data.
    """

    key: str
    value: object
    reason: str
    is_advised: bool = False

    def __str__(self) -> str:
        return f"{self.key}={as_override(self.value)}: {self.reason}"


def as_override(value: object) -> str:
    """Returns a value as an override on the command line shows it: a tuple of names as a list without quotes."""
    return f"[{','.join(map(str, cast(tuple[object, ...], value)))}]" if isinstance(value, tuple) else str(value)


class Identified(NamedTuple):
    """Result of an identification: a model or None, and the key, value and reason of the resulting choice."""

    model: LinearModel | None = None
    key: str | None = None
    value: object = None
    reason: str = ""

    @property
    def hidden(self) -> int:
        """The number of hidden states."""
        return 0 if self.model is None else self.model.hidden


@dataclass(frozen=True)
class Resolved:
    """Fully resolved options of a fit.

    - `options`: complete options.
    - `choices`: the choices made, with reasons.
    - `identify`: whether to identify a linear model of the data and then resolve again with it.
    - `ridges`: weights of the prior; with several, the validation data decide.
    """

    options: Options
    choices: tuple[Choice, ...] = ()
    identify: bool = False
    ridges: tuple[Number, ...] = (0.0,)


def resolve(
    options: Options, facts: Facts, identified: Identified | None = None, *, continued: bool = False
) -> Resolved:
    """Resolves the options that are still open.

    A long record that is driven by inputs, or whose initial states are read from preceding rows, gets a linear
    state-space model plus a network initialized to zero. Other trajectories get fixed defaults.

    **Arguments:**

    - `options`: options of the fit. `facts`: facts of its data.
    - `identified`: result of an identification, if it was run.
    - `continued`: whether the fit continues an earlier model, which determines hidden states and start.
    """
    inputs = options.solver.inputs
    choices: list[Choice] = []
    if inputs == "auto":
        inputs = facts.inputs
        choices += [Choice("solver.inputs", inputs, facts.inputs_reason)] if facts.driven else []
    if facts.decades and not continued:
        options, more = over_decades(options, facts)
        choices += more
    if is_equations_alone(options.field) and not continued:
        options, more = for_equations(options, facts)
        return with_ridges(with_solvers(options, inputs, facts), [*choices, *more], facts)
    # A linear model of the whole record cannot represent jumps.
    window, looks = window_of(options, facts), is_identified(options, facts) and not continued
    if not looks or window is None or facts.longest < LONG_RECORD * window:
        if looks and options.training.window is None and options.hidden == "auto" and is_long(facts):
            choices.append(Choice("hidden", 0, "hidden states are only chosen for fits in windows (training.window)"))
        why = None if continued else why_fitted_start(options, facts)
        if options.start == "auto" and why is not None:
            options = replace(options, start=Fitted)
            choices.append(Choice("start", "fitted", why))
        if not continued and identified is None and begins_as_linear(options, facts):
            return Resolved(with_solvers(options, inputs, facts), tuple(choices), identify=True)
        return with_ridges(with_solvers(with_plain_defaults(options), inputs, facts), choices, facts)
    if options.training.window == "auto":
        choices.append(Choice("training.window", window, f"the longest record has {facts.longest} rows"))
    by_filters = trait_of(options.observation, "is_nonlinear", False)
    many = by_filters or facts.rows >= MANY_ROWS
    options = replace(options, training=in_windows(options.training, window, facts.rows, many=many))
    if options.restarts == "auto":
        starts = STARTS_OF_FEW_ROWS if facts.rows <= FEW_ROWS and facts.validated else 1
        options = replace(options, restarts=starts)
        if starts > 1:
            why = f"{facts.rows} rows to fit are few; the best on the validation data"
            choices.append(Choice("restarts", starts, why))
    if identified is None and has_linear_part(options, facts):
        return Resolved(with_solvers(options, inputs, facts), tuple(choices), identify=True)
    if identified is not None:
        options, more = after_identification(options, identified)
        choices += more
    options = with_solvers(options, inputs, facts)
    if options.hidden == "auto":
        options = replace(options, hidden=0 if identified is None else identified.hidden)
    if options.start == "auto":
        rows, washout = (MORE_ROWS, WASHOUT) if by_filters else (ENCODER_ROWS, 0)
        options = replace(options, start=functools.partial(Encoder, rows=rows, before=True, washout=washout))
        choices.append(Choice("start", "encoder", f"a start is read from the {rows} rows up to it"))
    if takes_linear_part(options.field) and not has_angles(options, facts):
        assert callable(options.field)
        options = replace(options, field=functools.partial(options.field, linear=True))
    return with_ridges(options, choices, facts, begun=identified is not None and identified.model is not None)


def for_equations(options: Options, facts: Facts) -> tuple[Options, list[Choice]]:
    """Returns the defaults for equations alone: least squares over whole trajectories, from the specified values.

    The first row is as noisy as any other, so initial states are fitted along with the constants.
    """
    choices: list[Choice] = []
    if options.start == "auto" and (start := usual_start(options, facts)) is not First:
        options = replace(options, start=start)
        choices.append(Choice("start", "fitted", "a first row is as noisy as any other"))
    default = options.optimizer is None or bool(eqx.tree_equal(options.optimizer, LBFGS()))
    if default and options.training.batch_size is None and (is_default(options.recipe) or is_direct(options.recipe)):
        options = replace(options, optimizer=LevenbergMarquardt())
        choices.append(Choice("optimizer", "lm", "few constants, by least squares"))
    if is_default(options.recipe):
        options = replace(options, recipe=DIRECT_RECIPE)
    return with_plain_defaults(options), choices


def usual_start(options: Options, facts: Facts) -> MakeStart:
    """Returns the usual start of a fit to whole trajectories: fitted for equations alone, if trajectories are few."""
    held = any(name.startswith("start.") for name in options.training.freeze)  # A part of `First`.
    is_fitted = is_equations_alone(options.field) and facts.trajectories <= MAX_FITTED_STARTS and not held
    return fitted_start(facts) if is_fitted else First


def fitted_start(facts: Facts) -> MakeStart:
    """Returns a fitted start that uses all rows, unless new trajectories are to be predicted from a few rows."""
    return Fitted if facts.restarted else functools.partial(Fitted, given=None)


def over_decades(options: Options, facts: Facts) -> tuple[Options, list[Choice]]:
    """Returns options for rows that span decades of time.

    A network sees the logarithm of time, in which the problem is not stiff; any other field uses an implicit method.
    Both use adaptive steps, since equal steps cannot resolve such a record.
    """
    choices: list[Choice] = []
    why = f"the rows span {facts.decades:.0f} decades of time"
    if options.field is MLP or (is_plain(options.field) and maker_class(options.field) is MLP):
        options = replace(options, field=functools.partial(LogTimeMLP, shortest=facts.shortest))
        choices.append(Choice("field", "log_time", f"{why}, in whose logarithm its rates are of order one"))
    solver = options.solver
    if isinstance(solver, Solver) and (solver.method, solver.stepping) == (USUAL_METHOD, "held"):
        method = USUAL_METHOD if maker_class(options.field) is LogTimeMLP else STIFF_METHOD
        options = replace(options, solver=replace(solver, method=method, stepping="adaptive"))
        changed = ("solver.method", method) if method == STIFF_METHOD else ("solver.stepping", "adaptive")
        choices.append(Choice(*changed, why))
    return options, choices


def why_fitted_start(options: Options, facts: Facts) -> str | None:
    """Returns why initial states should be fitted instead of read from the first rows, or None if they should not.

    Applies only if all states are measured, or are positions and their velocities. Noisy trajectories must be long
    enough to estimate their initial states.
    """
    is_whole = options.training.window in ("auto", None) and options.training.batch_size is None
    hides_velocities = maker_class(options.field) is SecondOrder and options.hidden not in ("auto", 0, ())
    if hides_velocities and is_whole and facts.trajectories <= MAX_FITTED_STARTS:
        return "a first row shows no velocity"
    measured = (
        options.hidden in ("auto", 0, ()) and trait_of(options.observation, "is_direct", False) and not facts.angles
    )
    if not (measured and is_whole):
        return None
    if facts.begins_at_limit and facts.trajectories <= MAX_FITTED_STARTS:
        return "a first value is a limit, which is no value to start at"
    several = facts.trajectories in SEVERAL and facts.rows >= ROWS_OF_EACH * facts.trajectories
    noisy = several and facts.noise > NOISY
    return f"noise is {facts.noise:.0%} of the spread, and the first row has it, too" if noisy else None


def is_identified(options: Options, facts: Facts) -> bool:
    """Whether to identify a linear model with hidden states: if inputs drive, or starts are read from past rows."""
    return (facts.driven or keyword(options.start, "before") is True) and not facts.events


def begins_as_linear(options: Options, facts: Facts) -> bool:
    """Whether a linear field with hidden states of a driven record begins as a linear model found in NumPy.

    So it does if the record is short, fitted as a whole, or read with the inputs.
    """
    is_whole = not is_long(facts) or options.training.window is None or reads_inputs(options)
    fits = facts.longest >= LONG_RECORD * ENCODER_ROWS and is_whole and facts.driven and not facts.events
    hides = options.hidden not in ("auto", 0, ()) and not has_angles(options, facts)
    measured = trait_of(options.observation, "is_direct", False) or reads_inputs(options)
    return bool(trait_of(options.field, "is_linear", False)) and hides and measured and fits


def reads_inputs(options: Options) -> bool:
    """Whether channels are linear in the states and in the inputs."""
    return callable(options.observation) and maker_class(options.observation) is DirectReadout


def is_long(facts: Facts) -> bool:
    """Whether a record holds enough windows of the smallest size."""
    return facts.longest >= LONG_RECORD * WINDOWS[-1]


def window_of(options: Options, facts: Facts) -> int | None:
    """Returns the requested window, or the largest that fits often enough into a record; None: whole trajectories."""
    requested = options.training.window
    if requested != "auto":
        return requested
    enough = (rows for rows in WINDOWS if facts.longest >= LONG_RECORD * rows and reads_windows(options))
    return next(enough, None)


def reads_windows(options: Options) -> bool:
    """Whether the start rule provides the initial state of any window, so that windows can be used."""
    if isinstance(options.start, str):
        return True
    asks = trait_of(options.start, "can_read_windows", None)
    hides = options.hidden not in (0, "auto")
    return asks is None or asks(absent=keyword(options.start, "absent"), hides=hides)


def has_linear_part(options: Options, facts: Facts) -> bool:
    """Whether the field can hold a linear model of the measured states; angles are not linear states."""
    offered = trait_of(options.field, "has_linear_part", False) and keyword(options.field, "linear") is not False
    return offered and trait_of(options.observation, "is_direct", False) and not has_angles(options, facts)


def takes_linear_part(field: object) -> bool:
    """Whether a field not yet built has an optional linear part that the user neither requested nor declined."""
    made = cast(Callable[..., object], field)
    optional = trait_of(field, "has_linear_part", False) and "linear" in inspect.signature(made).parameters
    return optional and keyword(field, "linear") is None


def has_angles(options: Options, facts: Facts) -> bool:
    return bool(options.scaling.angles) or facts.angles


def after_identification(options: Options, identified: Identified) -> tuple[Options, list[Choice]]:
    """Returns the options after identification, with tolerances well below the error of the linear model."""
    choices = [] if identified.key is None else [Choice(identified.key, identified.value, identified.reason)]
    if identified.model is None or options.solver.rtol is not None:
        return options, choices
    rtol = float(f"{np.clip(identified.model.error * SMALL_TOLERANCE, *TOLERANCES):.1g}")
    options = replace(options, solver=replace(options.solver, rtol=rtol))
    if options.prediction_solver is None:
        tight = max(rtol / TIGHTER, TIGHT[options.kind])
        options = replace(options, prediction_solver=replace(with_tolerance(options.solver, tight), atol=tight))
    return options, [*choices, Choice("solver.rtol", rtol, "well below the error of the linear model")]


def with_solvers(options: Options, inputs: Interpolations, facts: Facts) -> Options:
    """Returns the options with complete solvers."""
    solver = options.solver.for_data(driven=facts.driven, inputs=inputs)
    predicting = options.prediction_solver and options.prediction_solver.for_data(driven=facts.driven, inputs=inputs)
    return replace(options, solver=solver, prediction_solver=predicting)


def with_plain_defaults(options: Options) -> Options:
    """Returns the options with the defaults for short and autonomous trajectories."""
    training = options.training
    return replace(
        options,
        hidden=0 if options.hidden == "auto" else options.hidden,
        restarts=1 if options.restarts == "auto" else options.restarts,
        start=First if options.start == "auto" else options.start,
        training=replace(
            training,
            steps=training.steps or DEFAULT_STEPS,
            chunk_steps=training.chunk_steps or CHUNK,
            window=None if training.window == "auto" else training.window,
        ),
    )


def in_windows(training: Training, window: int, rows: int, *, many: bool) -> Training:
    """Returns the training options for a long driven record: a bounded number of windows, and few or many steps."""
    return replace(
        training,
        steps=training.steps or (MANY_STEPS if many else STEPS_IN_WINDOWS),
        chunk_steps=training.chunk_steps or CHUNK_IN_WINDOWS,
        window=window,
        stride=training.stride or stride_of(rows),
    )


def stride_of(rows: int) -> int:
    """Returns the stride between windows for records with this many rows [rows]."""
    return max(NEAREST, min(FARTHEST_WINDOWS, rows // FEWER_WINDOWS), -(-rows // MOST_WINDOWS))


def with_ridges(options: Options, choices: list[Choice], facts: Facts, *, begun: bool = False) -> Resolved:
    """Returns the options with candidate weights of the prior, among which the validation data decide.

    **Arguments:** `begun`: whether the model is initialized from a linear model.
    """
    assert isinstance(options.penalty, Penalty)
    requested = options.penalty.ridge
    if not isinstance(requested, str):
        return Resolved(options, tuple(choices), ridges=(requested,))
    if not isinstance(options.recipe, Recipe):
        return Resolved(options, tuple(choices))
    beside = begun or keyword(options.field, "linear") is True
    if not beside and (options.training.window is None or not facts.driven):
        ridge = SHORT_RIDGE if facts.values < SHORT else 0.0
        return Resolved(options, tuple(choices), ridges=(ridge,))
    ridges = tuple(share * min(float(facts.values), MOST_PRIOR_VALUES) for share in RIDGES)
    if not facts.validated:
        return Resolved(options, tuple(choices), ridges=ridges[1:2])
    shown = ", ".join(f"{ridge:.2g}" for ridge in ridges)
    choice = Choice("penalty.ridge", f"[{shown}]", "one of these, by the validation data")
    return Resolved(options, (*choices, choice), ridges=ridges)
