"""Fits long records: a linear system with the number of states that the data support, and a small network beside it
if these are few.

The system is identified without training, from the responses to inputs (`sysid/realization.py`) or from the free
response of a record without inputs (`sysid/free_response.py`), and simulated with one exponential step per row. It is
the best simple model of a long record, which any other model has to beat.
"""

import functools
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from ..data.dataset import Dataset
from ..data.facts import check_trainable, find_oddities
from ..data.interpolation import is_even
from ..data.scaling import Scaler
from ..model import parameters
from ..model.fields.network import MLP, Linear
from ..model.initial_state.trained import Encoder
from ..model.make_model import is_plain, keyword, make_model, maker_class, trait_of
from ..model.neural_ode import NeuralODE
from ..model.observation import DirectReadout, LinearReadout
from ..objectives.matching import TrajectoryMatching
from ..objectives.objective import Penalty
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..options.options import Options, Training
from ..options.recipes import DIRECT_RECIPE, Plan, Recipe, is_default
from ..runtime.placement import scope_of
from ..solver.methods import EXPONENTIAL
from ..solver.solver import Solver
from ..sysid.free_response import as_free_matrices, count_window, identify_free_modes
from ..sysid.initialize import begin_as_modes
from ..sysid.realization import (
    INPUT_KINDS,
    Kind,
    ModalSystem,
    PastMap,
    ScoredSystem,
    Signals,
    StateMatrices,
    as_matrices,
    count_taps,
    identify_modes,
    map_past,
)
from ..training.callback import Callback
from .judge import UNFINISHED, EarlyFits, Judged, find_best, judge_attempt, result_of
from .problem import FitProblem, build_problem
from .resolve import Choice
from .result import Fit
from .train import train as solve

# Names of the attempts, and the verdicts that end the search.
LINEAR_SYSTEM, BESIDE_SYSTEM = "linear system", "small network beside it"
ENOUGH = ("good", "noise-limited")
# Rows from which a start is read: the first of these numbers for which the error of the start adds at most this share
# to the error of a row. Minimum noise variance of the outputs.
READ_ROWS, START_SHARE, LEAST_OUTPUT_VARIANCE = (10, 20, 40, 60, 100, 150, 200, 300, 400), 0.05, 1e-10
# Rows of a record, as a multiple of those from which its start is read, of which all later rows of a free response are
# a consequence.
READ_OF_DRIVEN, READ_OF_FREE = 6, 3
# Maximum number of modes that are described.
MOST_DESCRIBED = 8
# Fraction at the end of a record used to select the number of states without validation data.
HELD_SHARE = 0.2
# Maximum number of states for fitting a network beside the system with the Levenberg-Marquardt method.
MOST_BESIDE = 16
# Window size for fitting such a network [rows], approximate number of windows, and number of network units.
LONG_WINDOW, LONG_WINDOWS, BESIDE_UNITS = 512, 64, 12
# Unscored rows at the beginning of a window: this multiple of the slowest decay time, within these limits.
SETTLED_AFTER, WARM_UP = 3.0, (20, 256)
# Number of steps of that fit, its patience, and the weight of its prior, which only constrains directions that the data
# do not determine.
BESIDE_STEPS, BESIDE_PATIENCE, BESIDE_PRIOR = 120, 20, 1e-3


@dataclass(frozen=True)
class LongRecord:
    """The linear system of a long record, as a fit.

    - `fit`: fit of the system alone. `system`: its modes. `settled`: rows in which an initial error decays.
    - `begin`: initializes a model with a linear path as the system.
    """

    fit: Fit
    system: ModalSystem
    settled: int
    begin: Callable[[NeuralODE], NeuralODE]

    @property
    def states(self) -> int:
        return self.system.states

    def build_beside(self, options: Options, train: Dataset, validation: Dataset | None) -> FitProblem:
        """Builds the problem of fitting a small network beside the system in long windows."""
        problem = build_problem(beside_options(self.fit, options, self.settled), train, validation)
        return replace(problem, model=self.begin(problem.model), begins_as_modes=True)


def comes_first(train: Dataset) -> bool:
    """Whether the system is identified before any other fit: several measured states may be all states, of which
    equations are sought first."""
    return train.is_driven or len(train.states) == 1


def is_open_to_modes(options: Options) -> bool:
    """Whether the user's options permit a linear system with many states, or a network beside it."""
    field = options.field
    fits = callable(field) and maker_class(field) in (MLP, Linear) and is_plain(field)
    free = options.hidden == "auto" and options.start == "auto" and trait_of(options.observation, "is_direct", False)
    plain = is_default(options.recipe) and options.solver.method == "tsit5" and options.prediction_solver is None
    return fits and free and plain and options.members.count == 1


def is_long_and_even(train: Dataset, options: Options) -> bool:
    """Whether the records are evenly sampled, and long relative to their signals, and covariates play no part."""
    if train.events is not None or options.scaling.angles or train.angles:
        return False
    if not is_even(train.steps, train.median_step) or (train.inputs and not train.is_driven):
        return False
    return count_rows(train, signals_of(train, scaler_of_signals(train, options))) is not None


def count_rows(train: Dataset, records: Sequence[Signals]) -> int | None:
    """Returns the rows of the responses from which a system is identified; None if records are too short."""
    return count_taps(records) if train.is_driven else count_window(records)


def scaler_of_signals(train: Dataset, options: Options) -> Scaler:
    limits = options.scaling.limits(train.states, train.inputs)
    return Scaler.from_dataset(train, bounds=limits, identity=not options.scaling.affine)


def signals_of(data: Dataset, scaler: Scaler, before: int | None = None) -> list[Signals]:
    """Returns the records of the data in scaled units.

    **Arguments:** `before`: number of rows to keep before the first scored row, as far as available, which count like
    the others; None keeps all rows.
    """
    records: list[Signals] = []
    for row, length in enumerate(data.lengths):
        ys, us = scaler.scale_states(data.exact.ys[row, :length]), scaler.scale_inputs(data.us[row, :length])
        counts = np.asarray(np.isfinite(ys).all(axis=1))
        if before is not None:
            counted = data.mask[row, :length].any(axis=1)
            begin = max(int(counted.argmax()) - before, 0)
            ys, us, counts = ys[begin:], us[begin:], counts[begin:]
        records.append(Signals(us, np.nan_to_num(ys), counts))
    return records


def hold_out_ends(records: Sequence[Signals], before: int) -> tuple[list[Signals], list[Signals]]:
    """Splits records into beginnings and ends; the ends include `before` preceding rows."""
    ends = [int(len(record.us) * (1 - HELD_SHARE)) for record in records]
    early = [Signals(*(part[:end] for part in record)) for record, end in zip(records, ends, strict=True)]
    late = [
        Signals(*(part[max(end - before, 0) :] for part in record)) for record, end in zip(records, ends, strict=True)
    ]
    return early, late


def fit_long_record(
    options: Options, train: Dataset, validation: Dataset | None, watch: Callable[[str], None]
) -> LongRecord | None:
    """Identifies the smallest linear system that no larger one improves on.

    Returns None if records are short, uneven or no response of a linear system, or the options request another model.
    """
    began = time.perf_counter()
    check_trainable(train)
    if not (is_open_to_modes(options) and is_long_and_even(train, options)):
        return None
    scaler = scaler_of_signals(train, options)
    records = signals_of(train, scaler)
    taps = count_rows(train, records)
    assert taps is not None
    held = None if validation is None else signals_of(validation, scaler, taps)
    fitted, held = (records, held) if held is not None else hold_out_ends(records, taps)
    importlib.import_module("scipy.linalg")  # The limit only covers a BLAS that is already loaded.
    with threadpool_limits(1):
        if train.is_driven:
            kinds = kinds_to_try(options, train)
            identified = identify_modes(fitted, held, kinds=kinds, watch=watch) if kinds else None
        else:
            identified = identify_swinging(train, fitted, held, watch)
        if identified is None:
            return None
        system = identified.system
        matrices = (as_matrices if train.is_driven else as_free_matrices)(system, records)
    noise = np.full(len(system.shift), max(identified.mean / len(system.shift), LEAST_OUTPUT_VARIANCE))
    shortest = min(int(part.lengths.min()) for part in (train, validation) if part is not None)
    multiple = READ_OF_DRIVEN if train.is_driven else READ_OF_FREE
    past = next(
        past
        for rows in READ_ROWS
        if (past := map_past(matrices, noise, rows, system.kind)).share <= START_SHARE
        or rows * multiple > shortest
        or rows == READ_ROWS[-1]
    )
    changed = linear_options(options, system, train, past.rows)
    return make_fit(changed, system, matrices, past, train, validation, began)


def kinds_to_try(options: Options, train: Dataset) -> list[tuple[Kind, bool]]:
    """Returns the interpolations of inputs to try, each with and without a direct part; those that look right first."""
    requested = options.solver.inputs
    kinds: list[tuple[Kind, bool]] = [(kind, direct) for kind, direct in INPUT_KINDS if requested in ("auto", kind)]
    kinds.sort(key=lambda kind: (kind[1], (kind[0] == "hold") != all(train.held_inputs)))
    return kinds


def identify_swinging(
    train: Dataset, fitted: Sequence[Signals], held: Sequence[Signals], watch: Callable[[str], None]
) -> ScoredSystem | None:
    """Identifies the linear system of records without inputs that swing.

    Returns None if it has no more states than are measured, or mainly decays: equations of few terms are likely to
    explain these as well, and from the first row on.
    """
    identified = identify_free_modes(fitted, held, watch=watch)
    if identified is None or identified.system.states <= len(train.states):
        return None
    strongest = int(np.argmax(sizes_of_modes(identified.system)))
    return identified if identified.system.swings[strongest] else None


def linear_options(options: Options, system: ModalSystem, train: Dataset, rows: int) -> Options:
    """Returns the complete options for the system alone, with starts read from `rows` rows."""
    solver = Solver(EXPONENTIAL, inputs=system.kind).for_data(driven=train.is_driven, inputs=system.kind)
    return replace(
        options,
        field=Linear,
        hidden=system.states - len(train.states),
        start=functools.partial(Encoder, rows=rows, before=True, width=1),
        observation=DirectReadout if system.has_direct else LinearReadout,
        solver=solver,
        prediction_solver=solver,
        recipe=DIRECT_RECIPE,
        optimizer=LevenbergMarquardt(),
        penalty=Penalty(ridge=0.0),
        restarts=1,
        training=Training(
            steps=BESIDE_STEPS,
            window=LONG_WINDOW,
            stride=max(int(train.lengths.sum()) // LONG_WINDOWS, LONG_WINDOW // 2),
            chunk_steps=1,
            patience=BESIDE_PATIENCE,
            freeze=("start",),
        ),
    )


def make_fit(
    options: Options,
    system: ModalSystem,
    matrices: StateMatrices,
    past: PastMap,
    train: Dataset,
    validation: Dataset | None,
    began: float,
) -> LongRecord:
    def begin(model: NeuralODE) -> NeuralODE:
        with scope_of(model):
            return begin_as_modes(model, matrices, past, train.median_step / float(model.scaler.time_scale))

    model = options.place.one(begin(make_model(train, **options.parts)))
    fit = Fit(
        model=model,
        status="converged",
        reason="the squared errors of the free simulation of a linear system are least",
        history=[],
        steps=0,
        parameters=parameters.count_parameters((model.field, model.observation)),
        compiles=0,
        cached=0,
        compile_seconds=0.0,
        train_seconds=time.perf_counter() - began,
        data={"train": train} | ({} if validation is None else {"validation": validation}),
        options=options,
        choices=tuple(choices_of(options, system, train)),
        warnings=tuple(find_oddities(train, options.scaling)),
        linear=model,
    )
    settled = int(np.clip(SETTLED_AFTER / -np.real(system.rates).max(), *WARM_UP))
    return LongRecord(fit, system, settled, begin)


def choices_of(options: Options, system: ModalSystem, train: Dataset) -> list[Choice]:
    rows = keyword(options.start, "rows")
    kinds = {"hold": "held", "linear": "linear between rows"}
    direct = "a direct part of them" if system.has_direct else "no direct part of them"
    why = "the fewest states of a linear system that none of more states is better than by more than chance"
    driven = [
        Choice("observation", "direct" if system.has_direct else "linear", f"outputs have {direct}"),
        Choice("solver.inputs", system.kind, f"inputs are {kinds[system.kind]}, judged by rows held out"),
    ]
    return [
        Choice("hidden", options.hidden, f"{system.states} states, {why}; {describe_modes(system, train)}"),
        *(driven if train.is_driven else []),
        Choice("solver.method", EXPONENTIAL, "rows are even, and these steps are exact for a linear system"),
        Choice("start", "encoder", f"a start is read from the {rows} rows up to it"),
    ]


def sizes_of_modes(system: ModalSystem) -> Float[np.ndarray, " mode"]:
    """Computes the root of the energy of each mode's response to impulses of the inputs."""
    return np.linalg.norm(system.c, axis=0) * np.linalg.norm(system.b, axis=1) / np.sqrt(-np.real(system.rates))


def describe_modes(system: ModalSystem, train: Dataset) -> str:
    """Describes the strongest modes: periods and damping ratios of swings, and time constants of decays."""
    sizes = sizes_of_modes(system)
    strongest = np.argsort(-sizes)[:MOST_DESCRIBED]
    modes = [
        f"period {2 * np.pi * train.median_step / rate.imag:.4g} (damping ratio {-rate.real / abs(rate):.2g})"
        if rate.imag > 0
        else f"decay time {-train.median_step / rate.real:.4g}"
        for rate in system.rates[strongest]
    ]
    more = ", ..." if len(sizes) > MOST_DESCRIBED else ""
    return f"modes, in the unit of {train.time!r}: {', '.join(modes)}{more}"


def beside_options(fit: Fit, options: Options, settled: int) -> Options:
    """Returns options for a small network beside the system of a fit.

    The first rows of each window, in which an initial error decays, do not count.
    """
    assert isinstance(options.penalty, Penalty) and callable(fit.options.start)
    ridge = BESIDE_PRIOR if isinstance(options.penalty.ridge, str) else options.penalty.ridge
    return replace(
        fit.options,
        field=functools.partial(MLP, width=BESIDE_UNITS, depth=1, linear=True),
        start=functools.partial(fit.options.start, washout=settled),
        recipe=Recipe({"main": Plan(functools.partial(TrajectoryMatching, warm_up=settled))}),
        penalty=replace(options.penalty, ridge=ridge),
    )


def race_long_record(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> EarlyFits:
    """Fits the linear system of a long record, and a network beside it if it has few states and leaves more than noise.

    **Returns:** the judged fits, and whether they are good enough; no fits for other records.
    """
    long = fit_long_record(options, train, validation, callback.on_trial) if comes_first(train) else None
    if long is None:
        return EarlyFits()
    callback.on_fit_start(long.fit.model.typical, [str(choice) for choice in long.fit.choices])
    # Of records without inputs, networks are tried next.
    keys = ("hidden", "observation") if train.is_driven else ("field", "hidden", "observation")
    tried = [judge_attempt(LINEAR_SYSTEM, long.fit, None, keys)]
    few = long.states <= MOST_BESIDE and maker_class(options.field) is MLP and train.is_driven
    if few and tried[0].attempt.verdict not in ENOUGH:
        callback.on_attempt(BESIDE_SYSTEM, f"the {LINEAR_SYSTEM} is {tried[0].attempt.verdict}")
        fit = solve([long.build_beside(options, train, validation)], [callback])[0]
        tried.append(judge_attempt(BESIDE_SYSTEM, fit, None, ("field", "hidden")))
    best = find_best(tried)
    enough = best.attempt.verdict in ENOUGH or (train.is_driven and not few) or best.fit.status in UNFINISHED
    beside = [replace(judged, fit=replace(judged.fit, rival=long.fit.model.typical)) for judged in tried]
    return EarlyFits(beside, enough)


def best_of_race(tried: Sequence[Judged]) -> Fit:
    """Returns the best of the attempts of `race_long_record`."""
    return result_of(find_best(tried), tried)
