"""Fits sparse equations to short records first, since a search takes less time than compiling a network."""

import logging

from ..data.dataset import Dataset
from ..options.options import Options
from ..training.callback import Callback
from .candidates import FEW_TERMS, begins_with_equations, of_few_terms
from .judge import UNFINISHED, Judged, judge_attempt
from .problem import NoEquations, build_problem
from .train import train as solve

SHORT_LOG = logging.getLogger(__name__)


def fit_few_terms(
    options: Options, train: Dataset, validation: Dataset | None, callback: Callback
) -> tuple[list[Judged], bool]:
    """Fits sparse equations to a short record.

    **Returns:** the judged fit, and whether it is good enough; no fit for other records, or if no equations are found.
    """
    if not begins_with_equations(options, train):
        return [], False
    try:
        problem = build_problem(of_few_terms(options), train, validation, callback=callback)
        callback.on_opening(FEW_TERMS.name)
        callback.on_fit_start(problem.model, problem.remarks)
        best = judge_attempt(FEW_TERMS.name, solve([problem], [callback])[0], None, FEW_TERMS.keys)
    except NoEquations as none:
        SHORT_LOG.warning("%s: %s", FEW_TERMS.name, none.verdict)
        return [], False
    except Exception as error:  # Continue with other fits.
        SHORT_LOG.warning("%s: %s", FEW_TERMS.name, error)
        return [], False
    # A network could only fit the noise.
    is_enough = best.attempt.verdict == "noise-limited" and not best.is_unfit
    return [best], is_enough or best.fit.status in UNFINISHED
