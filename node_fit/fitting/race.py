"""The race: where a fit is not good, candidates that are known to help are tried, and the best is kept.

A candidate is an ordinary fit with other options; of a chaotic record, to windows of it. Validation data choose between
them; where there are none and rows are few, the evidence does (`fitting/relevance.py`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx

from ..optimizers.gradient import LBFGS
from ..options.options import Effort, Options, Training
from ..options.recipes import is_default
from ..training.callback import Callback
from .candidates import FIRST_ATTEMPT, Race, candidates_of
from .judge import (
    LEVEL,
    UNFINISHED,
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
from .relevance import thin_polynomial
from .result import Fit

RACE_LOG = logging.getLogger(__name__)
# Further fits, so that a command takes no more than some times as long as the first one.
MOST_ATTEMPTS = {"quick": 0, "normal": 6, "thorough": 100}

# Fits with other options to the data, cut into windows of so many rows if a number is given.
Again = Callable[[Options, int | None], Fit]


def run_race(
    options: Options, first: Fit, again: Again, effort: Effort, callback: Callback, before: Sequence[Judged] = ()
) -> Fit:
    """Tries the candidates that apply while the verdict asks for more, and returns the best fit with all attempts.

    **Arguments:**

    - `options`: those that were given. `first`: the fit that they lead to.
    - `again`: makes another fit.
    - `effort`: `quick` tries nothing, and `normal` the first few candidates that apply.
    - `callback`: told of each attempt.
    - `before`: what was tried before the first.
    """
    horizon = horizon_of(first)
    earlier = before if horizon is None else judge_again(before, horizon)
    race = Race(options, effort, (judge_attempt(FIRST_ATTEMPT, first, horizon), *earlier), horizon)
    if first.status in UNFINISHED:
        return end_early(race, first.status, first.reason)
    queue = list(candidates_of(race))
    while queue:
        candidate = queue.pop(0)
        enough = len(race.tried) > MOST_ATTEMPTS[effort] and not race.best.is_unfit
        if enough or not wants_more(race) or race.best.fit.status in UNFINISHED:
            break
        changed = candidate.options(race)
        if changed is None:
            continue
        callback.on_attempt(candidate.name, why_more(race.best))
        try:
            fit = again(changed, race.horizon)
        except KeyboardInterrupt as ended:
            return end_early(race, "interrupted", str(ended) or "by Ctrl-C")
        except Exception as error:  # A fit that is there is never lost to a later attempt.
            RACE_LOG.warning("%s: %s", candidate.name, error)
            continue
        if fit.status in UNFINISHED:
            return end_early(race, fit.status, fit.reason)
        found = judge_attempt(candidate.name, thin_polynomial(fit, LEVEL), race.horizon, candidate.keys)
        race = replace(race, tried=(*race.tried, found))
        if not race.is_chaotic and (horizon := horizon_seen_by(found)) is not None:
            # A better model shows that the record is chaotic.
            race = replace(race, tried=judge_again(race.tried, horizon), horizon=horizon)
            queue = list(candidates_of(race))
    return result_of(race.best, race.tried)


def judge_again(tried: Sequence[Judged], horizon: int) -> tuple[Judged, ...]:
    """Attempts judged by windows of so many rows, but for those that have been."""
    return tuple(
        each
        if each.attempt.horizon == horizon
        else judge_attempt(each.attempt.name, each.fit, horizon, each.attempt.keys)
        for each in tried
    )


def end_early(race: Race, status: str, reason: str) -> Fit:
    """The best fit so far, with the status of an attempt after which no other is made."""
    return replace(result_of(race.best, race.tried), status=status, reason=reason)


def is_open(options: Options, effort: Effort) -> bool:
    """Whether the fit's own choices may be replaced: nothing was asked for that says how to train."""
    given, plain = options.training, Training()
    same = all(getattr(given, name) == getattr(plain, name) for name in ("steps", "window", "stride", "batch_size"))
    optimizer = options.optimizer is None or bool(eqx.tree_equal(options.optimizer, LBFGS()))
    return effort != "quick" and same and not given.freeze and optimizer and is_default(options.recipe)


def wants_more(race: Race) -> bool:
    """Whether the best fit is not good, or its training data tell too little of that: they are few, chaotic, or of
    states that nobody measured, where other constants or more states may fit better."""
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
    """Why a fit is not enough: its verdict, or what its data do not tell."""
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
