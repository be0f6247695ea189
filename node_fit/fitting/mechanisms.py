"""Fits a mechanism to positions, velocities and forces before anything else is tried."""

import logging
from dataclasses import replace

import numpy as np

from ..data.dataset import Dataset
from ..discover.verdict import FEWEST_ROWS
from ..evaluation.advice import POOR
from ..mechanics.pairing import pair_states
from ..model.fields.known import Mechanical
from ..model.fields.network import MLP
from ..model.make_model import is_plain, maker_class, trait_of
from ..options.options import Options
from ..training.callback import Callback
from .judge import UNFINISHED, EarlyFits, Judged, horizon_of, judge_attempt
from .long_records import ENOUGH
from .problem import build_problem
from .resolve import Choice
from .train import train as solve

MECHANISM_LOG = logging.getLogger(__name__)
MECHANISM = "equations of motion"
# Encoder data determine an oscillating mechanism's constants to more digits than single precision has.
DOUBLE = Choice("precision", "x64", "the constants of an oscillation need more digits than single precision has")


def may_be_mechanism(options: Options, train: Dataset) -> bool:
    """Whether states are positions and velocities under forces, and the user's options permit equations."""
    field = options.field
    plain = callable(field) and maker_class(field) is MLP and is_plain(field) and options.discover
    free = options.hidden == "auto" and options.start == "auto" and trait_of(options.observation, "is_direct", False)
    if not (plain and free and options.members.count == 1 and int(train.mask.sum(axis=1).min()) >= FEWEST_ROWS):
        return False
    try:
        pair_states(train)
    except ValueError:
        return False
    return True


def fit_mechanism(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> EarlyFits:
    """Fits the equations of motion of a mechanism, if the columns match one.

    **Returns:** the judged fit (to windows for a chaotic record), and whether it is good enough; no fit for other
    columns.
    """
    if not may_be_mechanism(options, train):
        return EarlyFits()

    def judge(changed: Options, horizon: int | None) -> Judged:
        cut = [
            None if part is None else part.windows(horizon, horizon) if horizon else part
            for part in (train, validation)
        ]
        problem = build_problem(changed, cut[0] or train, cut[1], callback=callback)
        if options.kind != changed.kind:
            problem = replace(problem, choices=(*problem.choices, DOUBLE))
        callback.on_opening(MECHANISM)
        callback.on_fit_start(problem.model, problem.remarks)
        return judge_attempt(MECHANISM, solve([problem], [callback])[0], horizon, ("field",))

    exact = replace(options, field=Mechanical, restarts=1, precision="x64")
    try:
        with exact.place.scope():
            tried = [judge(exact, None)]
            fit = tried[0].fit
            horizon = None if tried[0].attempt.verdict in ENOUGH or fit.status in UNFINISHED else horizon_of(fit, POOR)
            if horizon is not None:
                tried = [judge(replace(exact, field=fit.options.field, start=fit.options.start), horizon)]
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:  # Continue with other fits.
        MECHANISM_LOG.warning("%s: %s", MECHANISM, error)
        return EarlyFits()
    best = tried[-1]
    return EarlyFits(tried, (best.attempt.verdict in ENOUGH and not best.runs_away) or best.fit.status in UNFINISHED)
