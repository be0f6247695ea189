"""The ladder: where a fit is not good, other ways that are known to help are tried, and the best is kept.

A rung is an ordinary fit with other options; of a chaotic record, to windows of it. Validation data choose between
them; where there are none and rows are few, the evidence does (`fitting/relevance.py`).
"""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import numpy as np

from ..data.dataset import Dataset
from ..data.facts import Facts
from ..evaluation.advice import POOR
from ..evaluation.case import FLAT
from ..evaluation.chaos import lyapunov_time, predicts_windows_alone
from ..model.ensemble import Ensemble
from ..model.fields.known import Sparse
from ..model.fields.network import MLP, Linear, LogTimeMLP, Polynomial
from ..model.initial_state.rule import First
from ..model.initial_state.trained import Encoder, Fitted
from ..model.make_model import is_equations_alone, is_plain, keyword, made_of, make_model, says
from ..model.observation import NetworkReadout
from ..objectives.objective import Penalty
from ..optimizers.gradient import LBFGS
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..options.options import Effort, Options, Training
from ..options.recipes import DEFAULT_RECIPE, Plan, Recipe, growing_windows, is_default
from ..runtime.placement import scope_of
from ..training.callback import Callback
from ..uncertainty.linearization import Unsure
from .between import runs_away
from .comparison import Errors, Misfit, errors_in_common
from .problem import has_enough_rows
from .relevance import evidence_of, thin_polynomial
from .resolve import ENCODER_ROWS, LONG_RECORD, SHORT, Choice, fitted_start
from .result import Fit

LADDER_LOG = logging.getLogger(__name__)
# Verdicts after which nothing else is tried, unless rows are few.
CONTENT = ("good", "close", "noise-limited", "unfinished", "coarse")
# Errors, as shares of the spread, above which a fit that leaves more than noise is no end of the search.
CLOSE_ENOUGH = 0.1
# Fits after which no other is made.
UNFINISHED = ("interrupted", "pruned")
FIRST_ATTEMPT = "as chosen"
GROWING = "growing windows"
SPARSE_EQUATIONS = "equations"
SPARSE_IN_WINDOWS = f"{SPARSE_EQUATIONS} in windows"
# Variables up to which equations and polynomials are tried.
MOST_VARIABLES = 3
# The prior on nonlinear coefficients, before their own are found.
POLYNOMIAL_RIDGE = 1.0
# The prior on a network beside a linear path: its weight for each fitted value, and at the most; and the factors of a
# weaker and of a stronger one.
NETWORK_RIDGE, WEAKER_PRIOR, STRONGER_PRIOR = (3e-4, 4.5), 0.15, 3.0
# A network needs a stronger prior if its validation error is larger than that of training by this factor.
MUCH_WORSE_HELD = 1.5
# The prior on the network where data without noise are fitted well: a linear system gets a linear field.
BESIDE_RIDGE = 1e-4
# The share of a trajectory's rows that its start may be fitted to, and the most rows.
GIVEN_SHARE, GIVEN_ROWS = 0.25, 10
# Units of the network beside a linear path.
NARROW_WIDTH = 16
# Hidden states that are added at a time to a driven record's model, how often, and those behind a readout by a network.
MORE_HIDDEN, MOST_ADDED, HIDDEN_BEHIND = 2, 2, 2
BESIDE_LINEAR = "small network beside a linear path"
NETWORK_READOUT, MORE_STATES = "readout by a network", "more hidden states"
HIDDEN_STATE, TOLD_BY_ROWS = "hidden state", "told by first rows"
# Rows that tell the start of a hidden state in short trajectories, of which these are a quarter at the most.
FIRST_ROWS = 4
# Rows of the windows of records without inputs whose starts are read from past rows: the first there are enough of.
PAST_ROWS, WINDOWS_AFTER_PAST = "windows after past rows", (64, 32, 16)
# Further fits, so that a command takes no more than some times as long as the first one.
MOST_ATTEMPTS = {"quick": 0, "normal": 6, "thorough": 100}
# Starts of known equations, the first from the constants that were given.
KNOWN_STARTS = {"normal": 5, "thorough": 32}
# Rows of the windows into which a chaotic record is cut.
HORIZON = 50
# Rows of a window that tell its start: from a noisy first row, errors grow whatever the equations. On training rows of
# Lorenz's system with 1 % noise, the true equations had an NRMSE of 0.36 from one row, 0.24 from 10 and 0.07 from 20.
CHAOTIC_START = 20
# A record of more Lyapunov times is chaotic: small errors have grown a hundredfold by its end.
LYAPUNOV_TIMES = 5.0
# A fit is better only by this share of the error, or by so much evidence. Equations, which hold from other starts,
# may be worse by the second factor, or by a standard error (L. Breiman et al., Classification and Regression Trees,
# 1984, section 3.4.3).
BETTER, AS_GOOD, MORE_PROBABLE = 0.98, 1.02, 1.0
# Stands for an error of zero, which has no logarithm.
TINY = 1e-300
# Other constants beside hidden states validate better by this share: some sets of both fit the same.
OTHER_CONSTANTS = 0.9
# Objectives of the same equations that differ by less are of the same optimum.
SAME_OBJECTIVE = 1e-6
# Attempts are simulated as the end of a run is, in the same programs; single fits have no bands of this level.
LEVEL = 0.9


@dataclass(frozen=True)
class Attempt:
    """One of the fits that were tried.

    - `name`: what it was. `verdict`: the kind of outcome, on training and validation data.
    - `train`, `validation`: errors over the spread of the training data; None without such data.
    - `log_evidence`: of the training data, where rows are few.
    - `horizon`: rows of the windows that it predicts, where it does not predict whole trajectories.
    - `keys`: the keys of the config that it tried other values of. `kept`: whether it is the result.
    """

    name: str
    verdict: str
    train: float | None
    validation: float | None
    log_evidence: float | None
    horizon: int | None
    seconds: float
    keys: tuple[str, ...] = ()
    kept: bool = False

    @property
    def has_equations(self) -> bool:
        """Whether it has equations of few terms that were found."""
        return self.name.startswith(SPARSE_EQUATIONS)

    @property
    def is_overfitted(self) -> bool:
        """Whether it is clearly worse on validation data."""
        return self.train is not None and not (self.validation or 0.0) <= MUCH_WORSE_HELD * self.train

    def __str__(self) -> str:
        errors = [f"NRMSE {self.train:.2g} on training"] if self.train is not None else []
        errors += [f"{self.validation:.2g} on validation data"] if self.validation is not None else []
        where = "" if self.horizon is None else f", in windows of {self.horizon} rows"
        return f"{self.name}: {', '.join(filter(None, [self.verdict, ' and '.join(errors)]))}{where}"


@dataclass(frozen=True)
class Rung:
    """A way to fit: its name, the keys of the config that it changes, and the options, or None where it does not apply.

    - `options`: from those that were given, the fit that they lead to, and what has been tried.
    """

    name: str
    keys: tuple[str, ...]
    options: "Callable[[Options, Fit, Sequence[Judged]], Options | None]"


@dataclass(frozen=True)
class Judged:
    """A fit with what it is compared by.

    - `error`: the largest on data that it saw or was chosen by. `misfits`: the errors of each value that it is made of.
    - `is_worse_than_mean`: whether the mean of the training data is far better.
    - `runs_away`: whether it leaves the data by far, from starts and by inputs between theirs, or simulated for longer.
    """

    fit: Fit
    attempt: Attempt
    error: float
    misfits: Mapping[str, Misfit] = field(default_factory=dict[str, Misfit])
    is_worse_than_mean: bool = False
    runs_away: bool = False

    @property
    def is_unfit(self) -> bool:
        """Whether it is kept only where all are unfit."""
        return self.is_worse_than_mean or self.runs_away

    @property
    def is_content(self) -> bool:
        """Whether nothing else is tried for its verdict; of few values, several models are tried all the same."""
        far = self.attempt.verdict == "close" and self.error > CLOSE_ENOUGH
        far = far and not has_few_values(self.fit.data["train"])
        return self.attempt.verdict in CONTENT and not far

    @property
    def standing(self) -> int:
        """Of good fits to few rows of which none is held out: how much speaks for one beside its error.

        Equations of few terms that leave nothing but noise, then fits that have an evidence: a network of thousands of
        weights fits few rows whatever they are.
        """
        found = self.attempt
        if found.verdict not in CONTENT:
            return 0
        return 2 if found.has_equations else int(found.log_evidence is not None)

    @property
    def is_fitted_as_judged(self) -> bool:
        """Whether it was fitted to windows if it is judged by them."""
        horizon = self.attempt.horizon
        return horizon is None or int(self.fit.data["train"].lengths.max()) <= horizon

    def beats(self, other: "Judged") -> bool:
        """Whether it is better: by evidence where both have one and nothing was held out, else by its error."""
        mine, theirs = self.attempt, other.attempt
        if has_same_equations(self.fit, other.fit):
            return self.objective < (1 - SAME_OBJECTIVE) * other.objective
        if self.is_unfit != other.is_unfit:
            return other.is_unfit
        if "validation" not in self.fit.data:
            if self.standing != other.standing:
                return self.standing > other.standing
            if mine.log_evidence is not None and theirs.log_evidence is not None:
                return mine.log_evidence > theirs.log_evidence + MORE_PROBABLE
        if mine.has_equations and self.standing:
            return self.error < as_good(self.fit) * other.error
        if has_hidden_starts(self.fit) and mine.train is not None and theirs.train is not None:
            # Of equations with a network; training rows alone tell constants apart where what is held out is at rest.
            nearer = mine.train < BETTER * theirs.train and self.error <= as_good(self.fit) * other.error
            return nearer or self.error < OTHER_CONSTANTS * other.error
        if mine.verdict in CONTENT and theirs.verdict in CONTENT:
            return self.log_error + math.log(1 / BETTER) < other.log_error
        return self.error < BETTER * other.error

    @property
    def objective(self) -> float:
        """What training has minimised, of equations alone: the likelihood of training rows tells their constants.

        Validation rows would mislead: at an epidemic's end, where no one is infected, any that die out validate well.
        """
        if self.fit.status == "failed":
            return math.inf
        try:
            return self.fit.evidence.misfit
        except Unsure:
            return math.inf if self.attempt.train is None else self.attempt.train

    @property
    def log_error(self) -> float:
        """Of the error and, if nothing was held out, of all that was fitted (BIC: G. Schwarz, Ann. Stat. 6, 1978)."""
        values = 1 if "validation" in self.fit.data else int(self.fit.data["train"].mask.sum())
        return math.log(max(self.error, TINY)) + self.fit.parameters * math.log(values) / (2 * values)


def has_same_equations(one: Fit, other: Fit) -> bool:
    """Whether two fits to the same rows differ in constants and starts alone."""
    fields: list[Any] = [fit.model.typical.field for fit in (one, other)]
    rows = [fit.data["train"].ys.shape for fit in (one, other)]
    alone = all(is_equations_alone(each) for each in fields)
    return alone and fields[0].texts() == fields[1].texts() and rows[0] == rows[1]


# Fits with other options to the data, cut into windows of so many rows if a number is given.
Again = Callable[[Options, int | None], Fit]


def climb(
    options: Options, first: Fit, again: Again, effort: Effort, callback: Callback, before: Sequence["Judged"] = ()
) -> Fit:
    """Tries the rungs that apply while the verdict asks for more, and returns the best fit with all attempts.

    **Arguments:**

    - `options`: those that were given. `first`: the fit that they lead to.
    - `again`: makes another fit.
    - `effort`: `quick` tries nothing, and `normal` the first few rungs that apply.
    - `callback`: told of each attempt.
    - `before`: what was tried before the first.
    """
    horizon = horizon_of(first)
    tried = [judge_attempt(FIRST_ATTEMPT, first, horizon), *before]
    best = best_of(tried)
    queue = rungs(options, first, horizon, effort)
    while queue:
        rung = queue.pop(0)
        enough = len(tried) > MOST_ATTEMPTS[effort] and not best.is_unfit
        enough = enough or not wants_more(tried, options)
        if enough or best.fit.status in UNFINISHED:
            break
        changed = rung.options(options, first, tried)
        if changed is None:
            continue
        callback.on_attempt(rung.name, why_more(best))
        try:
            fit = again(changed, horizon)
        except KeyboardInterrupt as ended:
            best = replace(best, fit=replace(best.fit, status="interrupted", reason=str(ended) or "by Ctrl-C"))
            break
        except Exception as error:  # A fit that is there is never lost to a later attempt.
            LADDER_LOG.warning("%s: %s", rung.name, error)
            continue
        if fit.status in UNFINISHED:
            best = replace(best, fit=replace(best.fit, status=fit.status, reason=fit.reason))
            break
        tried.append(judge_attempt(rung.name, thin_polynomial(fit, LEVEL), horizon, rung.keys))
        if horizon is None and (horizon := horizon_seen_by(tried[-1])) is not None:
            # A better model shows that the record is chaotic.
            tried = [judge_attempt(each.attempt.name, each.fit, horizon, each.attempt.keys) for each in tried]
            queue = rungs(options, first, horizon, effort)
        best = best_of(tried)
    return result_of(best, tried)


def best_of(tried: Sequence[Judged]) -> Judged:
    """The first that no later one beats, where all are compared on the same rows."""
    compared, best = on_same_rows(tried), 0
    for later in range(1, len(tried)):
        best = later if compared[later].beats(compared[best]) else best
    return tried[best]


def on_same_rows(tried: Sequence[Judged]) -> list[Judged]:
    """The attempts with their errors on the rows that count for all of them; those that have failed as they are."""
    known = [each for each in tried if each.misfits]
    errors = iter(errors_in_common([each.misfits for each in known]))
    return [with_errors(each, next(errors)) if each.misfits else each for each in tried]


def with_errors(judged: Judged, errors: Errors) -> Judged:
    train, validation = (finite_or_none(errors.by_role.get(role, math.nan)) for role in ("train", "validation"))
    attempt = replace(judged.attempt, train=train, validation=validation)
    return replace(judged, attempt=attempt, error=errors.worst, is_worse_than_mean=errors.is_worse_than_mean)


def result_of(best: Judged, tried: Sequence[Judged]) -> Fit:
    """The best fit, with all that was tried, and the time that all took."""
    fit = best.fit
    choices = fit.choices
    if len(tried) > 1 and best is not tried[0]:
        others = "; ".join(str(each.attempt) for each in tried if each is not best)
        told = {each.key: each.value for each in choices}
        if "hidden" in best.attempt.keys and told.get("hidden") != count_hidden(fit):
            choices = (*choices, Choice("hidden", count_hidden(fit), "the best of the fits that were tried"))
        choices = (*choices, Choice("attempt", best.attempt.name, f"{best.attempt}; not {others}"))
    return replace(
        fit,
        choices=choices,
        attempts=tuple(replace(each.attempt, kept=each is best) for each in tried),
        train_seconds=sum(each.fit.train_seconds for each in tried),
        compile_seconds=sum(each.fit.compile_seconds for each in tried),
        compiles=sum(each.fit.compiles for each in tried),
        cached=sum(each.fit.cached for each in tried),
        horizon=best.attempt.horizon,
    )


def is_open(options: Options, effort: Effort) -> bool:
    """Whether the fit's own choices may be replaced: nothing was asked for that says how to train."""
    given, plain = options.training, Training()
    same = all(getattr(given, name) == getattr(plain, name) for name in ("steps", "window", "stride", "batch_size"))
    optimizer = options.optimizer is None or bool(eqx.tree_equal(options.optimizer, LBFGS()))
    return effort != "quick" and same and not given.freeze and optimizer and is_default(options.recipe)


def wants_more(tried: Sequence[Judged], options: Options) -> bool:
    """Whether the best fit is not good, or its training data tell too little of that: they are few, chaotic, or of
    states that nobody measured, where other constants or more states may fit better."""
    judged = best_of(tried)
    found, content = judged.attempt, judged.is_content and not judged.runs_away
    if content and found.has_equations and judged.is_fitted_as_judged:
        return False
    if not content or found.horizon is not None or is_few(judged.fit):
        return True
    if may_have_more_states(tried, options) or may_hold_elsewhere(tried, options):
        return True
    return found.name == FIRST_ATTEMPT and has_hidden_starts(judged.fit)


def why_more(judged: Judged) -> str:
    """Why a fit is not enough: its verdict, or what its data do not tell."""
    found = judged.attempt
    if found.verdict not in CONTENT:
        return f"{found.name} is {found.verdict}"
    if judged.runs_away:
        return f"{found.name} runs away between the trajectories"
    if not judged.is_content:
        return f"{found.name} has an error of {judged.error:.2g}, and leaves more than noise"
    if found.horizon is not None:
        return "the record is chaotic, so that windows are fitted"
    if is_few(judged.fit):
        return "few rows allow several models"
    if reads_past(judged.fit):
        return f"it has {count_hidden(judged.fit)} hidden states and leaves more than noise"
    if has_hidden_starts(judged.fit):
        return "other constants may fit as well where states are hidden"
    return "a model with few constants holds from other starts, too"


def may_hold_elsewhere(tried: Sequence[Judged], options: Options) -> bool:
    """Whether few variables, which the first network has fitted well, may have a model that holds from other starts."""
    first = tried[0].fit
    network = callable(options.field) and made_of(options.field) is MLP and not reads_past(first)
    few = has_few_variables(options, tried) and has_enough_rows(first.data["train"])
    return tried[-1].attempt.name in (FIRST_ATTEMPT, SPARSE_EQUATIONS) and network and few


def may_have_more_states(tried: Sequence[Judged], options: Options) -> bool:
    """Whether the best model, whose starts are read from past rows, may need more hidden states than a linear model
    tells of: none were asked for, more than noise is left, it does not overfit, and those added last have helped."""
    best, added = best_of(tried), [each for each in tried if each.attempt.name.endswith(MORE_STATES)]
    if options.hidden != "auto" or len(added) >= MOST_ADDED or not reads_past(best.fit):
        return False
    helped = added[-1] is best if added else best.attempt.name in (FIRST_ATTEMPT, NETWORK_READOUT, PAST_ROWS)
    done = best.attempt.verdict in ("noise-limited", "unfinished") or best.attempt.is_overfitted
    return helped and not done


def reads_past(fit: Fit) -> bool:
    """Whether a network was fitted to windows of a driven record, or of one whose starts are read from past rows."""
    past = fit.data["train"].is_driven or keyword(fit.options.start, "before") is True
    return past and fit.options.training.window is not None and says(fit.options.field, "has_network", False)


def count_hidden(fit: Fit) -> int:
    hidden = fit.options.hidden
    return hidden if isinstance(hidden, int) else len(hidden)


def has_hidden_starts(fit: Fit) -> bool:
    """Whether a fit of known equations has found where hidden states start."""
    model = fit.model.typical
    known = says(fit.options.field, "has_equations", False)
    return known and bool(model.start.guess.unknown) and not isinstance(fit.model, Ensemble)


def is_few(fit: Fit) -> bool:
    """Whether few values are fitted by a network, which they do not determine."""
    flexible = says(fit.options.field, "has_linear_part", False) and not says(fit.options.field, "is_linear", False)
    return flexible and has_few_values(fit.data["train"])


def judge_attempt(name: str, fit: Fit, horizon: int | None, keys: tuple[str, ...] = ()) -> Judged:
    """The verdict on a fit, and the error by which it is compared: the largest on data that it saw or was chosen by."""
    seconds = round(fit.train_seconds + fit.compile_seconds, 3)
    if isinstance(fit.model, Ensemble) or fit.status == "failed":
        return Judged(fit, Attempt(name, "failed", None, None, None, horizon, seconds, keys), math.inf)
    splits = {part: data if horizon is None else data.windows(horizon, horizon) for part, data in fit.data.items()}
    # Without the history, which a run that is resumed does not have.
    assessed = replace(fit, history=[]).assess(splits, LEVEL, gate=horizon is None)
    case, train = assessed.case, fit.marked(splits["train"])
    misfits = {part: Misfit.of(data, case.predicted[part], train) for part, data in case.splits.items()}
    evidence = evidence_of(fit) if is_few(fit) else None
    attempt = Attempt(name, assessed.verdict.kind, None, None, evidence, horizon, seconds, keys)
    away = assessed.verdict.kind == "unstable" or (horizon is None and runs_away(fit.model, train))
    return with_errors(Judged(fit, attempt, math.inf, misfits, runs_away=away), Errors.of(misfits))


def as_good(fit: Fit) -> float:
    """The factor by which errors may differ by chance, which is more for few values."""
    judged_on = fit.data.get("validation", fit.data["train"])
    return max(AS_GOOD, 1 + (2 * int(judged_on.mask.sum())) ** -0.5)


def finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def horizon_seen_by(judged: Judged) -> int | None:
    """The horizon, by a fit; of equations that keep a part of the phase, or with the constants that were found, which a
    fit to whole trajectories of chaos may spoil: the errors of its steps grow, and constants make up for them."""
    fit = judged.fit
    if not judged.attempt.has_equations:
        return horizon_of(fit)
    horizon = horizon_of(fit, POOR)
    if horizon is not None or judged.attempt.verdict in CONTENT or fit.status == "failed":
        return horizon
    train = fit.data["train"]
    with scope_of(fit.model):
        found = replace(fit, model=make_model(train, **fit.options.parts))
        lasts = float(np.max(train.ts.max(axis=1) - train.ts.min(axis=1))) / lyapunov_time(found.model.typical, train)
    return horizon_of(found, 1.0 if lasts > LYAPUNOV_TIMES else POOR)


def horizon_of(fit: Fit, most: float = FLAT) -> int | None:
    """The rows of the windows to fit and to forecast, if the data look chaotic to a fit; None elsewhere."""
    simulates = fit.status != "failed" and not isinstance(fit.model, Ensemble)
    return HORIZON if simulates and predicts_windows_alone(fit.model.typical, fit.data, most) else None


def rungs(options: Options, first: Fit, horizon: int | None, effort: Effort) -> list[Rung]:
    """The rungs for a kind of field, in the order in which they are tried; in windows of a record with a horizon."""
    # Where rows span decades of time, any other field needs an implicit method, of which a step takes many seconds.
    if not callable(options.field) or made_of(first.options.field) is LogTimeMLP:
        return []
    if says(options.field, "has_equations", False):
        several = functools.partial(with_several_starts, effort=effort)
        return [
            Rung("derivatives first", ("recipe",), after_derivatives),
            Rung("several starts", ("restarts", "start"), several),
        ]
    if made_of(options.field) is not MLP or not is_plain(options.field):
        return []
    hidden = [
        Rung(NETWORK_READOUT, ("observation", "hidden"), with_network_readout),
        Rung(MORE_STATES, ("hidden",), with_more_states),
        Rung(f"yet {MORE_STATES}", ("hidden",), with_more_states),
    ]
    narrow, prior = ("training.window", "field.width"), ("penalty.ridge",)
    growing = [
        Rung(GROWING, narrow, in_growing_windows),
        Rung(f"{GROWING}, stronger prior", prior, functools.partial(with_other_prior, stronger=True)),
        Rung(f"{GROWING}, yet stronger prior", prior, functools.partial(with_other_prior, stronger=True)),
        Rung(f"{GROWING}, weaker prior", prior, functools.partial(with_other_prior, stronger=False)),
    ]
    chaotic = horizon is not None
    sparse = functools.partial(as_equations, chaotic=chaotic)
    equations = Rung(SPARSE_IN_WINDOWS if chaotic else SPARSE_EQUATIONS, ("field",), sparse)
    linear = Rung("linear", ("field",), as_linear)
    polynomials = [
        Rung(name, ("field",), functools.partial(as_polynomial, degree=degree, chaotic=chaotic))
        for name, degree in (("quadratic", 2), ("cubic", 3))
    ]
    if chaotic:
        return [equations, *polynomials, Rung("windows", ("training.window",), in_short_windows)]
    if reads_past(first):
        return [*hidden, equations, linear, *growing, *polynomials]
    past = [Rung(PAST_ROWS, ("hidden", "start", "training.window"), after_past_rows), *hidden[1:]]
    unseen = [
        Rung(HIDDEN_STATE, ("hidden",), with_hidden_state),
        Rung(f"{HIDDEN_STATE} {TOLD_BY_ROWS}", ("hidden", "start"), told_by_first_rows),
        Rung(f"another {HIDDEN_STATE}", ("hidden", "start"), with_another_hidden_state),
    ]
    if has_few_values(first.data["train"]):
        return [equations, *past, *unseen, *polynomials, *growing, linear]
    if len(first.data["train"].states) <= MOST_VARIABLES:
        beside = Rung(BESIDE_LINEAR, ("field.linear", "penalty.ridge"), beside_linear)
        return [equations, beside, *past, *unseen, linear, *growing, *polynomials]
    return [equations, linear, *growing, *past, *unseen, *polynomials]


def is_measured(options: Options, tried: Sequence[Judged]) -> bool:
    """Whether all states are measured as far as is known, and none is an angle."""
    first, best = tried[0].fit, best_of(tried).fit
    hidden = options.hidden not in ("auto", 0, ()) or count_hidden(first) or count_hidden(best)
    return not hidden and says(options.observation, "is_direct", False) and not first.data["train"].angles


def has_few_variables(options: Options, tried: Sequence[Judged]) -> bool:
    """Whether there are few enough states and inputs for equations, and all states are measured."""
    train = tried[0].fit.data["train"]
    return len(train.states) + len(train.inputs) <= MOST_VARIABLES and is_measured(options, tried)


def with_network_readout(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """What is measured may be any function of hidden states, such as a speed without its direction."""
    direct = says(options.observation, "is_direct", False) and not fit.data["train"].angles
    best = best_of(tried)
    if options.hidden != "auto" or not direct or best.is_content or best.attempt.is_overfitted:
        return None
    return replace(options, observation=NetworkReadout, hidden=HIDDEN_BEHIND)


def after_past_rows(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """Windows whose starts are read from the rows before them, which tell of states that nobody measured, if linear
    models ask for any: as of records that inputs drive."""
    train = fit.data["train"]
    direct = says(options.observation, "is_direct", False) and not train.angles and not train.is_driven
    given = options.hidden != "auto" or options.start != "auto" or train.events is not None
    if given or not direct or best_of(tried).is_content:
        return None
    window = next((rows for rows in WINDOWS_AFTER_PAST if train.lengths.max() >= LONG_RECORD * rows), None)
    start = functools.partial(Encoder, rows=ENCODER_ROWS, before=True)
    return None if window is None else replace(options, start=start, training=Training(window=window))


def with_more_states(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """The best model with more hidden states: what is not linear may hide them from a linear model."""
    best = best_of(tried)
    if not may_have_more_states(tried, options):
        return None
    before, hidden = best.fit.options, count_hidden(best.fit) + MORE_HIDDEN
    assert isinstance(before.penalty, Penalty)
    penalty = with_ridge(options, float(before.penalty.ridge))
    if not fit.data["train"].is_driven:
        window = Training(window=before.training.window)
        options = replace(options, start=before.start, training=window)
    return replace(options, observation=before.observation, hidden=hidden, penalty=penalty)


def may_hide_states(options: Options, fit: Fit, tried: Sequence[Judged]) -> bool:
    """Whether a state that nobody measured may be what the best fit lacks, and the user has left that open."""
    direct = says(options.observation, "is_direct", False) and not fit.data["train"].angles
    is_left_open = options.hidden == "auto" and options.start == "auto" and direct
    return is_left_open and not best_of(tried).is_content


def with_hidden_state(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """A hidden state whose start is found, or follows from inputs that do not change, such as a dose."""
    alone = not count_hidden(best_of(tried).fit)
    return replace(options, hidden=1) if alone and may_hide_states(options, fit, tried) else None


def told_by_first_rows(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """A hidden state whose start is read from the first rows: a speed, or what was there before the first one."""
    rows = min(FIRST_ROWS, int(fit.data["train"].lengths.min()) // FIRST_ROWS)
    if rows < 2 or not may_hide_states(options, fit, tried):
        return None
    hidden = max(count_hidden(best_of(tried).fit), 1)
    return replace(options, hidden=hidden, start=functools.partial(Encoder, rows=rows))


def with_another_hidden_state(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """The best fit with a hidden state, with one more."""
    best = best_of(tried)
    if HIDDEN_STATE not in best.attempt.name or not may_hide_states(options, fit, tried):
        return None
    start = best.fit.options.start if TOLD_BY_ROWS in best.attempt.name else "auto"
    return replace(options, hidden=count_hidden(best.fit) + 1, start=start)


def as_equations(options: Options, fit: Fit, tried: Sequence[Judged], *, chaotic: bool) -> Options | None:
    """Equations of few terms in few variables, as `discover` finds them; of chaos, in windows."""
    train = fit.data["train"]
    if not options.discover or not has_few_variables(options, tried) or not has_enough_rows(train):
        return None
    start = functools.partial(Fitted, given=CHAOTIC_START) if options.start == "auto" and chaotic else options.start
    changed = replace(options, field=Sparse, start=start, optimizer=LevenbergMarquardt(), restarts=1)
    return replace(changed, training=Training(window=None))


def beside_linear(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """A small network beside a linear path, which goes on beyond the data, where the first, large one fits well."""
    if not may_hold_elsewhere(tried, options) or not best_of(tried).is_content:
        return None
    field = functools.partial(MLP, linear=True)
    return replace(options, field=field, penalty=with_ridge(options, BESIDE_RIDGE), restarts=1)


def as_polynomial(options: Options, fit: Fit, tried: Sequence[Judged], *, degree: int, chaotic: bool) -> Options | None:
    """A polynomial of few variables, whose start is fitted where rows are few."""
    train = fit.data["train"]
    if not has_few_variables(options, tried):
        return None
    field = functools.partial(Polynomial, degree=degree)
    return replace(
        with_grown_windows(options, train, derivatives=True, chaotic=chaotic),
        field=field,
        start=start_for(options, train),
        penalty=with_ridge(options, POLYNOMIAL_RIDGE),
        restarts=1,
    )


def in_growing_windows(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """A linear path and a small network with a prior, in windows that grow."""
    train = fit.data["train"]
    if not is_measured(options, tried):
        return None
    field = functools.partial(MLP, width=NARROW_WIDTH, depth=1, linear=True)
    share, most = NETWORK_RIDGE
    penalty = with_ridge(options, min(share * int(train.mask.sum()), most))
    return replace(
        with_grown_windows(options, train, derivatives=False),
        field=field,
        start=start_for(options, train),
        penalty=penalty,
        restarts=1,
    )


def with_other_prior(options: Options, fit: Fit, tried: Sequence[Judged], *, stronger: bool) -> Options | None:
    """Windows that grow with a stronger prior, if the last such fit is overfitted; with a weaker one, if none was."""
    before = [each for each in tried if each.attempt.name.startswith(GROWING)]
    if not before or not isinstance(options.penalty, Penalty) or not isinstance(options.penalty.ridge, str):
        return None
    overfits = [each.attempt.is_overfitted for each in before]
    if not (overfits[-1] if stronger else not any(overfits)):
        return None
    last = before[-1].fit.options
    assert isinstance(last.penalty, Penalty) and isinstance(last.penalty.ridge, float)
    ridge = last.penalty.ridge * (STRONGER_PRIOR if stronger else WEAKER_PRIOR)
    changed = in_growing_windows(options, fit, tried)
    return changed and replace(changed, penalty=replace(last.penalty, ridge=ridge))


def in_short_windows(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """The field that was asked for, in windows of a chaotic record."""
    return replace(options, training=Training(window=None), restarts=1)


def as_linear(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """A linear field, which is quick, where the first fit is not good."""
    is_good = fit.diagnose().kind in CONTENT and not tried[0].runs_away
    if not is_measured(options, tried) or is_good:
        return None
    train = fit.data["train"]
    start = start_for(options, train) if has_few_values(train) else options.start
    return replace(options, field=Linear, start=start, restarts=1)


def with_grown_windows(options: Options, train: Dataset, *, derivatives: bool, chaotic: bool = False) -> Options:
    """The options with windows that grow; or with whole trajectories of few rows, or of a chaotic record's windows."""
    recipe = options.recipe if chaotic or has_few_values(train) else growing_windows(train, derivatives=derivatives)
    return replace(options, recipe=recipe, optimizer=LevenbergMarquardt(), training=Training(window=None))


def has_few_values(train: Dataset) -> bool:
    return int(train.mask.sum()) < SHORT


def start_for(options: Options, train: Dataset) -> Any:
    """The rule that was asked for; else a fitted start where rows are few, since the first of them is noisy, and
    elsewhere one that windows may begin with."""
    if options.start != "auto":
        return options.start
    return functools.partial(Fitted, given=given_rows(train)) if has_few_values(train) else First


def given_rows(train: Dataset) -> int:
    """Rows of a new trajectory to which its start is fitted: they do not count, so that most of a short one do."""
    return int(np.clip(np.median(train.lengths) * GIVEN_SHARE, 1, GIVEN_ROWS))


def with_ridge(options: Options, weight: float) -> Penalty:
    assert isinstance(options.penalty, Penalty)
    given = options.penalty.ridge
    return replace(options.penalty, ridge=weight if isinstance(given, str) else given)


def after_derivatives(options: Options, fit: Fit, tried: Sequence[Judged]) -> Options | None:
    """Equations alone from constants that fit the derivatives of the data, where all states are measured."""
    alone = is_equations_alone(options.field) and not says(options.field, "is_sought", False)
    if not alone or count_hidden(fit) or best_of(tried).is_content:
        return None
    optimizer = options.optimizer or LevenbergMarquardt()
    return replace(options, recipe=Recipe({**DEFAULT_RECIPE.stages, "main": Plan(optimizer=optimizer)}))


def with_several_starts(options: Options, fit: Fit, tried: Sequence[Judged], *, effort: Effort) -> Options | None:
    """Known equations from several constants, and starts that are fitted."""
    if options.restarts not in ("auto", 1) or isinstance(fit.model, Ensemble) or not fit.model.constants():
        return None
    start = fitted_start(Facts.of(fit.data["train"], fit.data.get("validation")))
    start = start if options.start == "auto" else options.start
    return replace(options, start=start, restarts=KNOWN_STARTS[effort], optimizer=LevenbergMarquardt())
