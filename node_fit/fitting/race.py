"""The race: if a fit is not good, tries candidates that are known to help and keeps the best.

A candidate is an ordinary fit with other options, or a fit to windows of a chaotic record. Validation data decide
between candidates; without them and with few rows, the evidence does (`fitting/relevance.py`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx

from ..optimizers.gradient import LBFGS
from ..options.options import Effort, Options, Training
from ..options.recipes import is_default
from ..training.callback import Callback
from .candidates import EQUATIONS_OF_MOTION, FIRST_ATTEMPT, SECOND_ORDER, Race, candidates_of
from .judge import (
    LEVEL,
    UNFINISHED,
    EarlyFits,
    Judged,
    count_hidden,
    has_hidden_starts,
    horizon_of,
    horizon_seen_by,
    is_few,
    judge_attempt,
    reads_past,
    result_of,
)
from .problem import NoEquations
from .relevance import thin_polynomial
from .result import Fit

RACE_LOG = logging.getLogger(__name__)
# Maximum number of further fits, which bounds the total time to a multiple of the first fit's.
MOST_ATTEMPTS = {"quick": 0, "normal": 6, "thorough": 100}

NO_EARLY_FITS = EarlyFits()
# Fits with other options to the data, which are cut into windows if a number of rows is passed.
Again = Callable[[Options, int | None], Fit]


def run_race(
    options: Options, first: Fit, again: Again, effort: Effort, callback: Callback, early: EarlyFits = NO_EARLY_FITS
) -> Fit:
    """Tries the applicable candidates until the verdict is good enough, and returns the best fit with all attempts.

    **Arguments:**

    - `options`: the user's options. `first`: the fit with these options.
    - `again`: makes another fit.
    - `effort`: `quick` tries no candidates, `normal` the first few that apply.
    - `callback`: notified of each attempt.
    - `early`: the attempts made before the first fit.
    """
    horizon = horizon_of(first)
    openings = tuple(early.tried) if horizon is None else judge_again(early.tried, horizon)
    made = (judge_attempt(FIRST_ATTEMPT, first, horizon),)
    race = Race(options, effort, made, horizon, openings, early.individuals)
    if first.status in UNFINISHED:
        return end_early(race, first.status, first.reason)
    queue = list(candidates_of(race))
    while queue:
        candidate = queue.pop(0)
        enough = len(race.tried) > MOST_ATTEMPTS[effort] and not race.best.is_unfit
        # A good network can show equations, which hold from other starts as well.
        is_due = candidate.name == EQUATIONS_OF_MOTION and race.made[-1].attempt.name == SECOND_ORDER
        if enough or not (wants_more(race) or is_due) or race.best.fit.status in UNFINISHED:
            break
        try:
            changed = candidate.options(race)
            if changed is None:
                continue
            callback.on_attempt(candidate.name, why_more(race.best))
            fit = changed if isinstance(changed, Fit) else again(changed, race.horizon)
        except KeyboardInterrupt as ended:
            return end_early(race, "interrupted", str(ended) or "by Ctrl-C")
        except NoEquations as none:
            RACE_LOG.warning("%s: %s", candidate.name, none.verdict)
            race = replace(race, individuals=none.individuals or race.individuals)
            continue
        except Exception as error:  # A failing attempt must not lose an earlier fit.
            RACE_LOG.warning("%s: %s", candidate.name, error)
            continue
        if fit.status in UNFINISHED:
            return end_early(race, fit.status, fit.reason)
        judged = judge_attempt(candidate.name, thin_polynomial(fit, LEVEL), race.horizon, candidate.keys)
        race = replace(race, made=(*race.made, judged))
        if not race.is_chaotic and (horizon := horizon_seen_by(judged)) is not None:
            # A better model shows that the record is chaotic.
            made, openings = (judge_again(attempts, horizon) for attempts in (race.made, race.openings))
            race = replace(race, made=made, openings=openings, horizon=horizon)
            queue = list(candidates_of(race))
    return end(race)


def end(race: Race) -> Fit:
    """Returns the best fit with all attempts, and equations with constants of each trajectory where it is not good."""
    fit = result_of(race.best, race.tried)
    if race.individuals is None or race.best.is_content:
        return fit
    return replace(fit, individuals=race.individuals)


def judge_again(tried: Sequence[Judged], horizon: int) -> tuple[Judged, ...]:
    """Judges attempts on windows of `horizon` rows, except those already judged that way."""
    return tuple(
        judged
        if judged.attempt.horizon == horizon
        else judge_attempt(judged.attempt.name, judged.fit, horizon, judged.attempt.keys)
        for judged in tried
    )


def end_early(race: Race, status: str, reason: str) -> Fit:
    """Returns the best fit so far, with the status of the attempt that ended the race."""
    return replace(end(race), status=status, reason=reason)


def is_open(options: Options, effort: Effort) -> bool:
    """Whether the automatic choices can be replaced, because the user set no training options."""
    training, plain = options.training, Training()
    same = all(getattr(training, name) == getattr(plain, name) for name in ("steps", "window", "stride", "batch_size"))
    optimizer = options.optimizer is None or bool(eqx.tree_equal(options.optimizer, LBFGS()))
    return effort != "quick" and same and not training.freeze and optimizer and is_default(options.recipe)


def wants_more(race: Race) -> bool:
    """Whether the best fit is not good, or the training data cannot establish that it is.

    The latter applies to few or chaotic data, and to unmeasured states, for which other constants or more states may
    fit better.
    """
    best = race.best
    attempt, content = best.attempt, best.is_content and not best.runs_away
    if content and attempt.has_equations and best.is_fitted_as_judged:
        return False
    if not content or attempt.horizon is not None or is_few(best.fit):
        return True
    if race.may_have_more_states or race.may_hold_elsewhere:
        return True
    return attempt.name == FIRST_ATTEMPT and has_hidden_starts(best.fit)


def why_more(judged: Judged) -> str:
    """Returns why a fit is not enough: its verdict, or an ambiguity that its data leave."""
    attempt = judged.attempt
    if not judged.is_acceptable:
        return f"{attempt.name} is {attempt.verdict}"
    if judged.runs_away:
        return f"{attempt.name} runs away between the trajectories"
    if not judged.is_content:
        return f"{attempt.name} has an error of {judged.error:.2g}, and leaves more than noise"
    if attempt.horizon is not None:
        return "the record is chaotic, so that windows are fitted"
    if is_few(judged.fit):
        return "few rows allow several models"
    if reads_past(judged.fit):
        return f"it has {count_hidden(judged.fit)} hidden states and leaves more than noise"
    if has_hidden_starts(judged.fit):
        return "other constants may fit as well where states are hidden"
    return "a model with few constants holds from other starts, too"
