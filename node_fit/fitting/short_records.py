"""Short records: equations of few terms come first, since a search takes less time than a network's programs."""

import logging

import numpy as np

from ..data.dataset import Dataset
from ..data.facts import Facts
from ..model.fields.network import MLP
from ..model.make_model import is_plain, made_of, says
from ..options.options import Options
from ..training.callback import Callback
from .candidates import FEW_TERMS, MOST_VARIABLES, of_few_terms
from .judge import UNFINISHED, Judged, judge_attempt
from .problem import build_problem, has_enough_rows
from .resolve import LONG_RECORD, SHORT, WINDOWS
from .train import train as solve

SHORT_LOG = logging.getLogger(__name__)


def may_have_few_terms(options: Options, train: Dataset, validation: Dataset | None) -> bool:
    """Whether a short record's few variables are all measured, and nothing else was asked for than a network."""
    field, facts = options.field, Facts.of(train, validation)
    plain = callable(field) and made_of(field) is MLP and is_plain(field) and options.discover
    measured = says(options.observation, "is_direct", False) and options.hidden in ("auto", 0, ())
    few = facts.values < SHORT and len(train.states) + len(train.inputs) <= MOST_VARIABLES
    # Inputs over many rows are learnt in windows, and rows over decades of time by a field of the logarithm.
    whole = facts.longest < LONG_RECORD * WINDOWS[-1] and not facts.decades and not train.angles
    return plain and measured and few and whole and has_enough_rows(train)


def fit_few_terms(
    options: Options, train: Dataset, validation: Dataset | None, callback: Callback
) -> tuple[list[Judged], bool]:
    """Fits equations of few terms to a short record.

    **Returns:** the fit, judged, and whether it is enough. No fit, if no equations were found.
    """
    try:
        problem = build_problem(of_few_terms(options), train, validation, callback=callback)
        callback.on_fit_start(problem.model, problem.said)
        best = judge_attempt(FEW_TERMS.name, solve([problem], [callback])[0], None, FEW_TERMS.keys)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:  # Other fits go on.
        SHORT_LOG.warning("%s: %s", FEW_TERMS.name, error)
        return [], False
    # A network could only follow the noise.
    is_enough = best.attempt.verdict == "noise-limited" and not best.is_unfit
    return [best], is_enough or best.fit.status in UNFINISHED
