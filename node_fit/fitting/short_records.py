"""Short records: fits equations of few terms, or a linear system, first, since these take less time than a network."""

import logging
from dataclasses import replace
from typing import NamedTuple

from ..data.dataset import Dataset
from ..data.facts import noise_share
from ..model.make_model import trait_of
from ..model.observation import DirectReadout
from ..options.options import Options
from ..training.callback import Callback
from .candidates import (
    FEW_TERMS,
    begins_with_equations,
    begins_with_linear_system,
    may_begin_with_linear_system,
    of_few_terms,
    of_linear_system,
    of_small_network,
    responds_at_once,
    with_fitted_start,
)
from .judge import MUCH_MORE_THAN_NOISE, UNFINISHED, EarlyFits, Judged, has_few_values, judge_attempt
from .problem import NoEquations, build_problem
from .resolve import reads_inputs
from .train import train as solve

SHORT_LOG = logging.getLogger(__name__)
# Names of the linear systems that are fitted in turn, by their number of hidden states, and keys that they change.
LINEAR_SYSTEMS = {1: "linear system", 2: "larger linear system"}
LINEAR_KEYS = ("field", "hidden")


class Opening(NamedTuple):
    """A fit to try: its name, the config keys that it changes, and its options."""

    name: str
    keys: tuple[str, ...]
    options: Options


def fit_short_record(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> EarlyFits:
    """Fits sparse equations to a short record, and linear systems with hidden states to one that is driven.

    **Returns:** the judged fits, and whether the last is good enough; no fit for other records, or if none succeeds.
    """
    tried: list[Judged] = []
    individuals = None
    for opening in list_openings(options, train, validation, callback):
        try:
            tried += try_opening(opening, train, validation, callback, tried[-1].fit.steps if tried else 0)
        except NoEquations as none:
            SHORT_LOG.warning("%s: %s", opening.name, none.verdict)
            individuals = none.individuals
            continue
        if tried and (is_enough(tried[-1]) or tried[-1].fit.status in UNFINISHED):
            return EarlyFits(tried, True)
    return EarlyFits(tried, False, individuals)


def list_openings(
    options: Options, train: Dataset, validation: Dataset | None = None, callback: Callback | None = None
) -> list[Opening]:
    """Returns the fits to try before that of a network, those that take less time first."""
    linear = open_driven_record(options, train) if begins_with_linear_system(options, train) else []
    if not linear and may_begin_with_linear_system(options, train):
        linear = open_linear_record(options, train, validation, callback)
    if not begins_with_equations(options, train):
        return linear
    if has_few_values(train):
        return [Opening(FEW_TERMS.name, FEW_TERMS.keys, of_few_terms(options)), *linear]
    found = with_fitted_start(of_few_terms(options), train, validation)
    return [*linear, Opening(FEW_TERMS.name, FEW_TERMS.keys, found)]


def open_driven_record(options: Options, train: Dataset) -> list[Opening]:
    """Returns linear systems of a driven record; one, then a network, read with the inputs if channels respond at once.

    A network that reads no inputs could not follow such a response.
    """
    if not responds_at_once(options, train):
        return [
            Opening(name, LINEAR_KEYS, of_linear_system(options, train, hidden))
            for hidden, name in LINEAR_SYSTEMS.items()
        ]
    read_with_inputs = replace(options, observation=DirectReadout)
    return [
        Opening(LINEAR_SYSTEMS[1], (*LINEAR_KEYS, "observation"), of_linear_system(read_with_inputs, train, 1)),
        Opening(
            "network read with inputs",
            ("field.width", "observation", "start", "optimizer"),
            of_small_network(read_with_inputs, train, 0),
        ),
    ]


def open_linear_record(
    options: Options, train: Dataset, validation: Dataset | None, callback: Callback | None
) -> list[Opening]:
    """Returns a linear system of a longer record, if a linear model of its windows leaves little more than noise."""
    linear = build_problem(options, train, validation, callback=callback).linear
    if linear is None or linear.train_error > MUCH_MORE_THAN_NOISE * noise_share(train):
        return []
    return [Opening(LINEAR_SYSTEMS[1], LINEAR_KEYS, of_linear_system(options, train, linear.hidden))]


def try_opening(
    opening: Opening, train: Dataset, validation: Dataset | None, callback: Callback, steps: int
) -> list[Judged]:
    """Makes and judges a fit, which counts its steps from `steps`; none if it fails.

    **Raises:** `NoEquations` if no equations are found.
    """
    try:
        problem = build_problem(opening.options, train, validation, callback=callback, offset=steps)
        callback.on_opening(opening.name)
        callback.on_fit_start(problem.model, problem.remarks)
        return [judge_attempt(opening.name, solve([problem], [callback])[0], None, opening.keys)]
    except NoEquations:
        raise
    except Exception as error:  # Continue with other fits.
        SHORT_LOG.warning("%s: %s", opening.name, error)
    return []


def is_enough(judged: Judged) -> bool:
    """Whether another network would only follow the noise, which a good linear system leaves as well.

    Good equations must leave little more than the noise.
    """
    if judged.is_unfit:
        return False
    hides_or_reads = judged.is_linear_system or reads_inputs(judged.fit.options)
    if judged.attempt.verdict == "good":
        is_simple = judged.attempt.has_equations or trait_of(judged.fit.options.field, "is_linear", False)
        return hides_or_reads or (is_simple and judged.is_near_noise)
    return judged.attempt.verdict == "noise-limited"
