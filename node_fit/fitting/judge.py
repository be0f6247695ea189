"""The judge of attempts: what each is compared by, and which of them is the best, in whatever order they were made.

Errors are those on the rows that count for all attempts. A tie goes to equations, which hold from other starts, too,
and else to the attempt that was made first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from ..data.facts import noise_share
from ..evaluation.advice import POOR
from ..evaluation.case import FLAT
from ..evaluation.chaos import lyapunov_time, predicts_windows_alone
from ..model.ensemble import Ensemble
from ..model.make_model import is_equations_alone, keyword, make_model, says
from ..runtime.placement import scope_of
from ..uncertainty.linearization import Unsure
from .between import runs_away
from .comparison import Errors, Misfit, errors_in_common
from .relevance import evidence_of
from .resolve import SHORT, Choice
from .result import Fit

# Verdicts after which nothing else is tried, unless rows are few.
CONTENT = ("good", "close", "noise-limited", "unfinished", "coarse")
# A fit that leaves more than noise is no end of the search if its error, as a share of the spread, is above the first
# number and above the noise by the second factor; in windows of long records, whose fits take minutes, above the third.
CLOSE_ENOUGH, MUCH_MORE_THAN_NOISE, CLOSE_ENOUGH_IN_WINDOWS = 0.03, 1.3, 0.1
# Fits after which no other is made.
UNFINISHED = ("interrupted", "pruned")
# The prefix of the names of attempts whose equations of few terms were searched.
SPARSE_EQUATIONS = "equations"
# A fit is clearly worse on validation data if its error is larger than that of training by this factor.
MUCH_WORSE_HELD = 1.5
# Rows of the windows into which a chaotic record is cut.
HORIZON = 50
# A record of more Lyapunov times is chaotic: small errors have grown a hundredfold by its end.
LYAPUNOV_TIMES = 5.0
# Fits tie whose errors differ by a smaller factor, or that have so much less evidence. Equations tie within the second
# factor, or a standard error (L. Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
TIED_ERRORS, TIED_EQUATIONS, TIED_EVIDENCE = 1 / 0.98, 1.02, 1.0
# Constants beside hidden states tie on validation data within this factor: some sets of both fit the same.
TIED_CONSTANTS = 1 / 0.9
# Objectives of the same equations that differ by a smaller factor are of the same optimum.
SAME_OBJECTIVE = 1 + 1e-6
# Stands for an error of zero, which has no logarithm.
TINY = 1e-300
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
    def is_acceptable(self) -> bool:
        """Whether the verdict is none of those after which others are always tried."""
        return self.attempt.verdict in CONTENT

    @property
    def is_content(self) -> bool:
        """Whether nothing else is tried for its verdict; of few values, several models are tried all the same."""
        train = self.fit.data["train"]
        if not self.is_acceptable or self.attempt.verdict != "close" or has_few_values(train):
            return self.is_acceptable
        if self.fit.options.training.window is not None:
            return self.error <= CLOSE_ENOUGH_IN_WINDOWS
        return self.error <= max(CLOSE_ENOUGH, MUCH_MORE_THAN_NOISE * noise_share(train))

    @property
    def standing(self) -> int:
        """Of good fits to few rows of which none is held out: how much speaks for one beside its error.

        Equations of few terms that leave nothing but noise, then fits that have an evidence: a network of thousands of
        weights fits few rows whatever they are.
        """
        if not self.is_acceptable:
            return 0
        return 2 if self.attempt.has_equations else int(self.attempt.log_evidence is not None)

    @property
    def is_fitted_as_judged(self) -> bool:
        """Whether it was fitted to windows if it is judged by them."""
        horizon = self.attempt.horizon
        return horizon is None or int(self.fit.data["train"].lengths.max()) <= horizon

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
        return log(self.error) + self.fit.parameters * math.log(values) / (2 * values)


def find_best(tried: Sequence[Judged]) -> Judged:
    """The best of some attempts, compared on the same rows; one that is unfit only where all are."""
    if len(tried) == 1:  # Its likelihood, which decides between fits of known equations, would take a program.
        return tried[0]
    compared = on_same_rows(tried)
    if has_same_equations([each.fit for each in tried]):
        return tried[first_tied([log(each.objective) for each in compared], log(SAME_OBJECTIVE))]
    rest = [each for each in compared if not each.is_unfit] or compared
    if not is_validated(rest[0].fit):
        highest = max(each.standing for each in rest)
        rest = [each for each in rest if each.standing == highest]
    best = find_least(rest)
    return tried[next(number for number, each in enumerate(compared) if each is best)]


def find_least(rest: Sequence[Judged]) -> Judged:
    """The best of attempts between which nothing but errors, or their evidence, decides."""
    least = min(each.error for each in rest)
    if all(has_hidden_starts(each.fit) and each.attempt.train is not None for each in rest):
        # Of equations with a network; training rows alone tell constants apart where what is held out is at rest.
        near = [each for each in rest if each.error <= TIED_CONSTANTS * least]
        return near[first_tied([log(each.attempt.train or 0.0) for each in near], log(TIED_ERRORS))]
    equations = [each for each in rest if each.attempt.has_equations and each.is_acceptable]
    near = [each for each in equations if each.error < tied_by_chance(each.fit) * least]
    if near or len(equations) == len(rest):
        return min(near or rest, key=lambda each: (not each.is_fitted_as_judged, each.error))
    evidence = [each.attempt.log_evidence for each in rest]
    if not is_validated(rest[0].fit) and None not in evidence:
        return rest[first_tied([-each for each in evidence if each is not None], TIED_EVIDENCE)]
    acceptable = [each for each in rest if each.is_acceptable]
    if any(each.error == least for each in acceptable):
        return acceptable[first_tied([each.log_error for each in acceptable], log(TIED_ERRORS))]
    return rest[first_tied([log(each.error) for each in rest], log(TIED_ERRORS))]


def first_tied(values: Sequence[float], margin: float) -> int:
    """The number of the first value that is above the least by no more than a margin."""
    return next(number for number, value in enumerate(values) if value <= min(values) + margin)


def log(error: float) -> float:
    return math.log(max(error, TINY))


def is_validated(fit: Fit) -> bool:
    return "validation" in fit.data


def tied_by_chance(fit: Fit) -> float:
    """The factor by which errors may differ by chance, which is more for few values."""
    judged_on = fit.data.get("validation", fit.data["train"])
    return max(TIED_EQUATIONS, 1 + (2 * int(judged_on.mask.sum())) ** -0.5)


def has_same_equations(fits: Sequence[Fit]) -> bool:
    """Whether fits to the same rows differ in constants and starts alone."""
    fields: list[Any] = [fit.model.typical.field for fit in fits]
    if not all(is_equations_alone(each) for each in fields):
        return False
    alike = [(each.texts(), fit.data["train"].ys.shape) for each, fit in zip(fields, fits, strict=True)]
    return all(each == alike[0] for each in alike)


def on_same_rows(tried: Sequence[Judged]) -> list[Judged]:
    """The attempts with their errors on the rows that count for all of them; those that have failed as they are."""
    known = [each for each in tried if each.misfits]
    errors = iter(errors_in_common([each.misfits for each in known]))
    return [with_errors(each, next(errors)) if each.misfits else each for each in tried]


def with_errors(judged: Judged, errors: Errors) -> Judged:
    train, validation = (finite_or_none(errors.by_role.get(role, math.nan)) for role in ("train", "validation"))
    attempt = replace(judged.attempt, train=train, validation=validation)
    return replace(judged, attempt=attempt, error=errors.worst, is_worse_than_mean=errors.is_worse_than_mean)


def finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


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


def has_few_values(train: Dataset) -> bool:
    return int(train.mask.sum()) < SHORT


def is_few(fit: Fit) -> bool:
    """Whether few values are fitted by a network, which they do not determine."""
    flexible = says(fit.options.field, "has_linear_part", False) and not says(fit.options.field, "is_linear", False)
    return flexible and has_few_values(fit.data["train"])


def count_hidden(fit: Fit) -> int:
    hidden = fit.options.hidden
    return hidden if isinstance(hidden, int) else len(hidden)


def has_hidden_starts(fit: Fit) -> bool:
    """Whether a fit of known equations has found where hidden states start."""
    model = fit.model.typical
    known = says(fit.options.field, "has_equations", False)
    return known and bool(model.start.guess.unknown) and not isinstance(fit.model, Ensemble)


def reads_past(fit: Fit) -> bool:
    """Whether a network was fitted to windows of a driven record, or of one whose starts are read from past rows."""
    past = fit.data["train"].is_driven or keyword(fit.options.start, "before") is True
    return past and fit.options.training.window is not None and says(fit.options.field, "has_network", False)


def horizon_seen_by(judged: Judged) -> int | None:
    """The horizon, by a fit; of equations that keep a part of the phase, or with the constants that were found, which a
    fit to whole trajectories of chaos may spoil: the errors of its steps grow, and constants make up for them."""
    fit = judged.fit
    if not judged.attempt.has_equations:
        return horizon_of(fit)
    horizon = horizon_of(fit, POOR)
    if horizon is not None or judged.is_acceptable or fit.status == "failed":
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
