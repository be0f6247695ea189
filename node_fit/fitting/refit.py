"""Continues training of the selected model on all rows, including the validation data.

Once an iterate, a weight of the prior and an attempt are selected, held-out rows are no longer needed, and they are a
fifth to a half of a record (T. Hastie et al., The Elements of Statistical Learning, 2009, section 7.10). Reported
validation scores remain those of the previous model, which has not seen these data.
"""

import logging
from collections.abc import Callable
from dataclasses import fields, replace

from ..data.dataset import Dataset
from ..evaluation.simulation import concatenate_splits
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..objectives.objective import Penalty
from ..options.options import Options
from ..options.recipes import DIRECT_RECIPE
from ..training.callback import Callback
from .problem import OF_THE_MODEL, pooled_error
from .resolve import Choice
from .result import Fit

REFIT_LOG = logging.getLogger(__name__)
ALL_ROWS = "all rows"
# Training steps on all rows: few, since the model is near its optimum and no held-out rows remain for early stopping.
STEPS_ON_ALL = 100

TRAINED_ON_ALL = Choice(
    "refit",
    ALL_ROWS,
    "the model was trained further on training and validation data together; the scores of validation data are those "
    "of the model before, which had not seen them",
)
KEPT_BEFORE = Choice("refit", "training rows", "trained further on all rows, the model simulates them worse")

# Continues training a model on other data.
GoOn = Callable[[Options, Dataset, NeuralODE], Fit]


def refit_to_all(fit: Fit, go_on: GoOn, callback: Callback) -> Fit:
    """Trains the fit's model further on training and validation data, unless this makes it worse on them.

    **Arguments:** `go_on`: continues training of an earlier model. `callback`: notified of the attempt.
    """
    if not is_worth_refitting(fit):
        return fit
    model = fit.model
    assert isinstance(model, NeuralODE)
    callback.on_attempt(ALL_ROWS, "validation data have nothing left to choose")
    try:
        more = go_on(options_on_all(fit.options), concatenate_splits(dict(fit.data)), model)
    except KeyboardInterrupt as ended:
        return replace(fit, status="interrupted", reason=str(ended) or "by Ctrl-C")
    except Exception as error:  # A failing refit must not lose the earlier fit.
        REFIT_LOG.warning("%s: %s", ALL_ROWS, error)
        return fit
    if more.status == "interrupted":
        return replace(fit, status=more.status, reason=more.reason)
    spent = {
        name: getattr(fit, name) + getattr(more, name)
        for name in ("train_seconds", "compile_seconds", "compiles", "cached")
    }
    if more.status == "failed" or not is_safe(more.model.typical, fit):
        return replace(fit, choices=(*fit.choices, KEPT_BEFORE), **spent)
    return replace(fit, model=more.model, validated=model, choices=(*fit.choices, TRAINED_ON_ALL), **spent)


def is_worth_refitting(fit: Fit) -> bool:
    """Whether validation data selected a model regularized by a prior, in windows of long records.

    Whole trajectories without a prior gain nothing: further steps fit noise as much as new information.
    """
    penalty, model = fit.options.penalty, fit.model
    if "validation" not in fit.data or isinstance(model, Ensemble) or fit.status in ("failed", "interrupted", "pruned"):
        return False
    windowed = fit.options.training.window is not None and fit.horizon is None
    regular = isinstance(penalty, Penalty) and isinstance(penalty.ridge, int | float) and penalty.ridge > 0
    settled = fit.is_linear or model.constants() or model.local or fit.options.members.vary == "laplace"
    return windowed and regular and not settled


def options_on_all(options: Options) -> Options:
    """Returns options for continuing from the model of a fit, with the selected weight of the prior."""
    plain = {option.name: option.default for option in fields(Options) if option.name in OF_THE_MODEL}
    training = replace(options.training, steps=STEPS_ON_ALL)
    return replace(options, **plain, recipe=DIRECT_RECIPE, training=training, restarts=1)


def is_safe(model: NeuralODE, fit: Fit) -> bool:
    """Whether a model simulates all rows no worse than that of a fit, and does not run away unless that does."""
    if not pooled_error(model, fit.data) <= pooled_error(fit.model.typical, fit.data):
        return False
    train = fit.data["train"]
    return replace(fit, model=model).find_escape(train) is None or fit.find_escape(train) is not None
