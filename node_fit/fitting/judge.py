"""Compares attempts and selects the best, independent of their order.

Errors are computed on the rows that count for all attempts. A tie goes to equations, which generalize to other
initial states, and otherwise to the earliest attempt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..data.facts import noise_share
from ..discover.individuals import Individuals
from ..evaluation.advice import POOR
from ..evaluation.case import FLAT
from ..evaluation.chaos import lyapunov_time, predicts_windows_alone
from ..model.ensemble import Ensemble
from ..model.make_model import is_equations_alone, keyword, make_model, trait_of
from ..runtime.placement import scope_of
from ..uncertainty.linearization import Unsure
from .between import runs_away
from .comparison import Errors, Misfit, errors_in_common
from .relevance import evidence_of
from .resolve import LONG_RECORD, SHORT, WINDOWS, Choice
from .result import Fit

# Verdicts after which no other candidate is tried, unless rows are few.
CONTENT = ("good", "close", "noise-limited", "unfinished", "coarse")
# If residuals exceed noise, the search continues while the error, as a fraction of the spread, is above the first
# number and above the noise by the second factor; in windows of long records, whose fits take minutes, above the third.
CLOSE_ENOUGH, MUCH_MORE_THAN_NOISE, CLOSE_ENOUGH_IN_WINDOWS = 0.03, 1.3, 0.1
# Statuses that end the search.
UNFINISHED = ("interrupted", "pruned")
# Prefix of the names of attempts with sparse equations found by search.
SPARSE_EQUATIONS = "equations"
# Ratio of validation to training error above which a fit is clearly worse on validation data.
MUCH_WORSE_HELD = 1.5
# Window size for chaotic records [rows].
HORIZON = 50
# A record longer than this many Lyapunov times is chaotic: small errors grow a hundredfold by its end.
LYAPUNOV_TIMES = 5.0
# Fits tie if their errors differ by less than the first factor, or their log evidence by less than the third number.
# Equations tie within the second factor, or a standard error (L. Breiman et al., Classification and Regression Trees,
# 1984, section 3.4.3).
TIED_ERRORS, TIED_EQUATIONS, TIED_EVIDENCE = 1 / 0.98, 1.02, 1.0
# Constants beside hidden states tie on validation data within this factor: several sets of both fit equally well.
TIED_CONSTANTS = 1 / 0.9
# Objectives of the same equations that differ by a smaller factor belong to the same optimum.
SAME_OBJECTIVE = 1 + 1e-6
# Floor for errors before taking their logarithm.
TINY = 1e-300
# Level used to simulate attempts, so that they share the compiled programs of the final report; single fits have no
# bands.
LEVEL = 0.9


@dataclass(frozen=True)
class Attempt:
    """A fit that was tried.

    - `name`: name of the candidate. `verdict`: the kind of outcome, on training and validation data.
    - `train`, `validation`: errors over the spread of the training data; None without such data.
    - `log_evidence`: of the training data, if rows are few.
    - `horizon`: rows of the predicted windows, if it does not predict whole trajectories.
    - `keys`: config keys for which it tried other values. `kept`: whether it is the result.
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
        """Whether it has sparse equations found by search."""
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
    """A fit with the quantities used to compare it.

    - `error`: the largest error on training or validation data. `misfits`: the underlying errors of each value.
    - `is_worse_than_mean`: whether the mean of the training data is far better.
    - `runs_away`: whether it leaves the range of the data by far, from initial states and inputs between those of the
      data, or when simulated for longer.
    """

    fit: Fit
    attempt: Attempt
    error: float
    misfits: Mapping[str, Misfit] = field(default_factory=dict[str, Misfit])
    is_worse_than_mean: bool = False
    runs_away: bool = False

    @property
    def is_unfit(self) -> bool:
        """Whether it is kept only if all attempts are unfit."""
        return self.is_worse_than_mean or self.runs_away

    @property
    def is_acceptable(self) -> bool:
        """Whether the verdict does not require further attempts."""
        return self.attempt.verdict in CONTENT

    @property
    def is_linear_system(self) -> bool:
        """Whether the field is linear and states of a short record are hidden; what it leaves may be nonlinear."""
        if not trait_of(self.fit.options.field, "is_linear", False) or not count_hidden(self.fit):
            return False
        return int(self.fit.data["train"].lengths.max()) < LONG_RECORD * WINDOWS[-1]

    @property
    def is_content(self) -> bool:
        """Whether the verdict and error end the search; with few values, several models are still tried."""
        train = self.fit.data["train"]
        if not self.is_acceptable or self.attempt.verdict != "close":
            return self.is_acceptable
        if self.is_linear_system:
            return False
        if has_few_values(train):
            return True
        if self.fit.options.training.window is not None:
            return self.error <= CLOSE_ENOUGH_IN_WINDOWS
        return self.error <= CLOSE_ENOUGH or self.is_near_noise

    @property
    def is_near_noise(self) -> bool:
        """Whether the error is little more than the noise of the training data, as neighbouring rows show it."""
        return self.error <= MUCH_MORE_THAN_NOISE * noise_share(self.fit.data["train"])

    @property
    def standing(self) -> int:
        """The rank of a good fit to few rows without held-out data, beyond its error.

        Sparse equations that leave only noise come first, then fits with an evidence. A network with thousands of
        weights can fit any few rows.
        """
        if not self.is_acceptable:
            return 0
        return 2 if self.attempt.has_equations else int(self.attempt.log_evidence is not None)

    @property
    def is_fitted_as_judged(self) -> bool:
        """Whether it was fitted to windows if it is judged on windows."""
        horizon = self.attempt.horizon
        return horizon is None or int(self.fit.data["train"].lengths.max()) <= horizon

    @property
    def objective(self) -> float:
        """The training objective of equations alone, whose constants are determined by the training likelihood.

        Validation rows would mislead: at the end of an epidemic, any constants for which it dies out validate well.
        """
        if self.fit.status == "failed":
            return math.inf
        try:
            return self.fit.evidence.misfit
        except Unsure:
            return math.inf if self.attempt.train is None else self.attempt.train

    @property
    def log_error(self) -> float:
        """The log error; without held-out data, penalized by model size (BIC: G. Schwarz, Ann. Stat. 6, 1978)."""
        values = 1 if "validation" in self.fit.data else int(self.fit.data["train"].mask.sum())
        return log(self.error) + self.fit.parameters * math.log(values) / (2 * values)


def find_best(tried: Sequence[Judged]) -> Judged:
    """Returns the best attempt, compared on the same rows; an unfit one only if all are unfit."""
    if len(tried) == 1:  # Computing its likelihood would compile a program for nothing.
        return tried[0]
    compared = on_same_rows(tried)
    if has_same_equations([judged.fit for judged in tried]):
        return tried[index_of_first_tied([log(judged.objective) for judged in compared], log(SAME_OBJECTIVE))]
    contenders = [judged for judged in compared if not judged.is_unfit] or compared
    if not is_validated(contenders[0].fit):
        highest = max(judged.standing for judged in contenders)
        contenders = [judged for judged in contenders if judged.standing == highest]
    best = find_least(contenders)
    return tried[next(number for number, judged in enumerate(compared) if judged is best)]


def find_least(rest: Sequence[Judged]) -> Judged:
    """Returns the best of attempts that only errors or evidence can separate."""
    least = min(judged.error for judged in rest)
    if all(has_hidden_starts(judged.fit) and judged.attempt.train is not None for judged in rest):
        # Equations with a network: only training rows distinguish constants if the held-out data are at rest.
        near = [judged for judged in rest if judged.error <= TIED_CONSTANTS * least]
        return near[index_of_first_tied([log(judged.attempt.train or 0.0) for judged in near], log(TIED_ERRORS))]
    equations = [judged for judged in rest if judged.attempt.has_equations and judged.is_acceptable]
    near = [judged for judged in equations if judged.error < chance_factor(judged) * least]
    if near or len(equations) == len(rest):
        return min(near or rest, key=lambda judged: (not judged.is_fitted_as_judged, judged.error))
    evidence = [judged.attempt.log_evidence for judged in rest]
    if not is_validated(rest[0].fit) and None not in evidence:
        return rest[index_of_first_tied([-value for value in evidence if value is not None], TIED_EVIDENCE)]
    acceptable = [judged for judged in rest if judged.is_acceptable]
    if any(judged.error == least for judged in acceptable):
        return acceptable[index_of_first_tied([judged.log_error for judged in acceptable], log(TIED_ERRORS))]
    return rest[index_of_first_tied([log(judged.error) for judged in rest], log(TIED_ERRORS))]


def index_of_first_tied(values: Sequence[float], margin: float) -> int:
    """Returns the index of the first value within a margin of the minimum."""
    return next(number for number, value in enumerate(values) if value <= min(values) + margin)


def log(error: float) -> float:
    return math.log(max(error, TINY))


def is_validated(fit: Fit) -> bool:
    return "validation" in fit.data


def chance_factor(judged: Judged) -> float:
    """Returns the factor by which an error can exceed the least by chance, which is larger for few values.

    It is a standard error, and two for equations that leave only noise: the least of several errors is a lucky one.
    """
    judged_on = judged.fit.data.get("validation", judged.fit.data["train"])
    errors = 2 if judged.attempt.verdict == "noise-limited" else 1
    return max(TIED_EQUATIONS, 1 + errors * (2 * int(judged_on.mask.sum())) ** -0.5)


def has_same_equations(fits: Sequence[Fit]) -> bool:
    """Whether fits to the same rows differ only in constants and initial states."""
    fields: list[Any] = [fit.model.typical.field for fit in fits]
    if not all(is_equations_alone(known_field) for known_field in fields):
        return False
    signatures = [
        (known_field.texts(), fit.data["train"].ys.shape) for known_field, fit in zip(fields, fits, strict=True)
    ]
    return all(signature == signatures[0] for signature in signatures)


def on_same_rows(tried: Sequence[Judged]) -> list[Judged]:
    """Returns the attempts with errors on the rows that count for all of them; failed attempts are unchanged."""
    with_misfits = [judged for judged in tried if judged.misfits]
    errors = iter(errors_in_common([judged.misfits for judged in with_misfits]))
    return [with_errors(judged, next(errors)) if judged.misfits else judged for judged in tried]


def with_errors(judged: Judged, errors: Errors) -> Judged:
    train, validation = (finite_or_none(errors.by_role.get(role, math.nan)) for role in ("train", "validation"))
    attempt = replace(judged.attempt, train=train, validation=validation)
    return replace(judged, attempt=attempt, error=errors.worst, is_worse_than_mean=errors.is_worse_than_mean)


def finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def judge_attempt(name: str, fit: Fit, horizon: int | None, keys: tuple[str, ...] = ()) -> Judged:
    """Judges a fit: its verdict, and the error used for comparison, the largest on training or validation data."""
    seconds = round(fit.train_seconds + fit.compile_seconds, 3)
    if isinstance(fit.model, Ensemble) or fit.status == "failed":
        return Judged(fit, Attempt(name, "failed", None, None, None, horizon, seconds, keys), math.inf)
    splits = {part: data if horizon is None else data.windows(horizon, horizon) for part, data in fit.data.items()}
    # Drop the history, which resumed runs lack.
    assessed = replace(fit, history=[]).assess(splits, LEVEL, gate=horizon is None)
    case, train = assessed.case, fit.mark_angles(splits["train"])
    misfits = {part: Misfit.of(data, case.predicted[part], train) for part, data in case.splits.items()}
    evidence = evidence_of(fit) if is_few(fit) else None
    attempt = Attempt(name, assessed.verdict.kind, None, None, evidence, horizon, seconds, keys)
    away = assessed.verdict.kind == "unstable" or (horizon is None and runs_away(fit.model, train))
    return with_errors(Judged(fit, attempt, math.inf, misfits, runs_away=away), Errors.of(misfits))


class EarlyFits(NamedTuple):
    """The fits that are made before a network, and whether the last is good enough; equations with constants of each
    trajectory, if a search found these alone."""

    tried: Sequence[Judged] = ()
    is_enough: bool = False
    individuals: Individuals | None = None


def result_of(best: Judged, tried: Sequence[Judged]) -> Fit:
    """Returns the best fit, with all attempts and their total time."""
    fit = best.fit
    choices = fit.choices
    if len(tried) > 1 and best is not tried[0]:
        others = "; ".join(str(judged.attempt) for judged in tried if judged is not best)
        values = {choice.key: choice.value for choice in choices}
        if "hidden" in best.attempt.keys and values.get("hidden") != count_hidden(fit):
            choices = (*choices, Choice("hidden", count_hidden(fit), "the best of the fits that were tried"))
        choices = (*choices, Choice("attempt", best.attempt.name, f"{best.attempt}; not {others}"))
    return replace(
        fit,
        choices=choices,
        attempts=tuple(replace(judged.attempt, kept=judged is best) for judged in tried),
        train_seconds=sum(judged.fit.train_seconds for judged in tried),
        compile_seconds=sum(judged.fit.compile_seconds for judged in tried),
        compiles=sum(judged.fit.compiles for judged in tried),
        cached=sum(judged.fit.cached for judged in tried),
        horizon=best.attempt.horizon,
    )


def has_few_values(train: Dataset) -> bool:
    return int(train.mask.sum()) < SHORT


def is_few(fit: Fit) -> bool:
    """Whether a network is fitted to too few values to determine it."""
    flexible = trait_of(fit.options.field, "has_linear_part", False) and not trait_of(
        fit.options.field, "is_linear", False
    )
    return flexible and has_few_values(fit.data["train"])


def count_hidden(fit: Fit) -> int:
    hidden = fit.options.hidden
    return hidden if isinstance(hidden, int) else len(hidden)


def has_hidden_starts(fit: Fit) -> bool:
    """Whether a fit of known equations estimated the initial values of hidden states."""
    model = fit.model.typical
    has_equations = trait_of(fit.options.field, "has_equations", False)
    return has_equations and bool(model.start.guess.unknown) and not isinstance(fit.model, Ensemble)


def reads_past(fit: Fit) -> bool:
    """Whether a network was fitted to windows of a driven record, or of one with starts read from past rows."""
    past = fit.data["train"].is_driven or keyword(fit.options.start, "before") is True
    return past and fit.options.training.window is not None and trait_of(fit.options.field, "has_network", False)


def horizon_seen_by(judged: Judged) -> int | None:
    """Returns the horizon according to a fit.

    Sparse equations are also tested with a lower threshold, and with the constants as found by the search: a fit to
    whole chaotic trajectories can spoil constants, because they compensate for growing integration errors.
    """
    fit = judged.fit
    if not judged.attempt.has_equations:
        return horizon_of(fit)
    horizon = horizon_of(fit, POOR)
    if horizon is not None or judged.is_acceptable or fit.status == "failed":
        return horizon
    train = fit.data["train"]
    with scope_of(fit.model):
        as_found = replace(fit, model=make_model(train, **fit.options.parts))
        lasts = float(np.max(train.ts.max(axis=1) - train.ts.min(axis=1))) / lyapunov_time(
            as_found.model.typical, train
        )
    return horizon_of(as_found, 1.0 if lasts > LYAPUNOV_TIMES else POOR)


def horizon_of(fit: Fit, most: float = FLAT) -> int | None:
    """Returns the window size for fitting and forecasting if the data look chaotic to a fit; None otherwise."""
    simulates = fit.status != "failed" and not isinstance(fit.model, Ensemble)
    return HORIZON if simulates and predicts_windows_alone(fit.model.typical, fit.data, most) else None
