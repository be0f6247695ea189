"""Whether inputs that change at every row are held in between: rows do not show it, but the states respond to it.

Known equations are fitted with each interpolation in NumPy, and their likelihood decides. Before any other fit, linear
systems with a hidden state decide, whose steps are exact for held and for linear inputs.
"""

import functools
import math
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.facts import Facts
from ..data.inputs import Interpolations, are_held
from ..data.scaling import Scaler
from ..evaluation.metrics import score_predictions
from ..model.make_model import is_equations_alone
from ..options.options import Options
from ..sysid.linear_model import linear_models
from .resolve import ENCODER_ROWS, LONG_RECORD
from .uncompiled import CLEAR_LEAD, FirstFit, fit_without_compiling

# Rows and number of the windows to which linear systems are fitted, and maximum number of states and inputs; all are
# few, since two fits precede any other.
RESPONSE_ROWS, RESPONSES, MOST_SIGNALS = 64, 32, 5
# Maximum ratio of even rows to measured ones, since uneven rows are interpolated.
MOST_HOLES = 5
# Maximum number of rows of a window to which equations are fitted, and number of such windows.
EQUATION_ROWS, EQUATION_WINDOWS = 100, 3
# Minimum ratio of the errors of linear systems; their own error exceeds smaller differences.
CLEAR_RATIO = 1.1


def with_responses(facts: Facts, options: Options, train: Dataset) -> Facts:
    """Returns the facts with the interpolation of inputs to which states respond, if it is clearly another."""
    if facts.driven and options.solver.inputs == "auto":
        with suppress(Exception):  # A fit must not fail because of a trial; it reports what is wrong itself.
            if is_equations_alone(options.field):
                return with_responses_of(facts, options.field, few_rows(train))
            if (ratio := respond_as_held(train)) > 1:
                return with_inputs(facts, "hold", "a linear system", ratio)
    return facts


def with_responses_of(facts: Facts, field: object, train: Dataset) -> Facts:
    """Returns the facts with the interpolation to which the states of known equations respond."""
    fitted = None if len(train.states) > MOST_SIGNALS else fit_without_compiling(field, {"train": train}, "train")
    if fitted is None:
        return facts
    facts = facts if fitted.gain == 1 else with_inputs(facts, fitted.inputs, "the equations", fitted.gain)
    return hint_at_interval_before(facts, fitted, field, train)


def few_rows(train: Dataset) -> Dataset:
    """Returns a few trajectories, or windows of long ones: NumPy takes few steps between many rows."""
    longest = int(train.lengths.max())
    # Windows have no starts for states that were dosed before them.
    if longest > EQUATION_ROWS and train.events is None:
        train, longest = train.windows(EQUATION_ROWS, longest // EQUATION_WINDOWS), EQUATION_ROWS
    return train.sample(max(EQUATION_WINDOWS * EQUATION_ROWS // longest, 1))


def hint_at_interval_before(facts: Facts, fitted: FirstFit, field: object, train: Dataset) -> Facts:
    """Returns the facts with a hint if the equations rather respond to the inputs of the next rows.

    Loggers give means of the time since the row before, which hold before their row and not after it.
    """
    later = replace(train, us=np.concatenate([train.us[:, 1:], train.us[:, -1:]], axis=1))
    shifted = fit_without_compiling(field, {"train": later}, "train", inputs="hold")
    ratio = 1.0 if shifted is None else error_at_rows(fitted, train) / error_at_rows(shifted, train)
    if not (ratio > CLEAR_RATIO and 2 * int(train.mask.sum()) * math.log(ratio) > CLEAR_LEAD):
        return facts
    hint = (
        f"held inputs of the next row make the error {ratio:.2g} times smaller: data.input_interval=before, if a row "
        "gives their mean since the row before"
    )
    return replace(facts, inputs_reason=f"{facts.inputs_reason}; {hint}")


def error_at_rows(fitted: FirstFit, data: Dataset) -> float:
    """Returns the root mean square error of a fit, in standard deviations of each state."""
    return score_predictions(data, fitted.at_rows("train")).nrmse


def with_inputs(facts: Facts, inputs: Interpolations, subject: str, ratio: float) -> Facts:
    where = "held" if inputs == "hold" else "on lines"
    why = f"with inputs {where} between rows, the error of {subject} is {ratio:.2g} times smaller"
    return replace(facts, inputs=inputs, inputs_reason=why)


# The fits of a race share the answer.
@functools.lru_cache(maxsize=1)
@np.errstate(all="ignore")
def respond_as_held(train: Dataset) -> float:
    """Returns the ratio of the errors of linear systems with inputs as they look and with held ones; 1 if not clear.

    Short windows suffice, since the next row shows most of the difference.
    """
    looks, inputs = train.input_interpolation[0], len(train.inputs)
    longest = int(train.lengths.max())
    is_short, is_wide = longest < LONG_RECORD * ENCODER_ROWS, len(train.states) + inputs > MOST_SIGNALS
    has_holes = float(np.ptp(train.ts, axis=1).max()) > MOST_HOLES * longest * train.median_step
    if all(are_held(looks, inputs)) or train.events is not None or is_short or is_wide or has_holes:
        return 1.0
    scaler, errors = Scaler.from_dataset(train), dict[Interpolations, float]()
    rows = min(longest // 2, RESPONSE_ROWS) + ENCODER_ROWS - 1
    for kinds in (looks, "hold"):
        even = train.resample(train.median_step, kinds)
        stride = max(int(even.lengths.sum()) // RESPONSES, 1)
        windows = Batch.from_dataset(even.windows(rows, stride).sample(RESPONSES), scaler, ENCODER_ROWS)
        (model,) = linear_models(windows, windows, Batch.from_dataset(even, scaler), kinds, hidden=1)
        errors[kinds] = model.train_error
    ratio = errors[looks] / errors["hold"] if errors["hold"] > 0 else math.inf
    lead = 2 * int(train.mask.sum()) * math.log(ratio) if 0 < ratio < math.inf else 0.0
    return ratio if lead > CLEAR_LEAD and ratio > CLEAR_RATIO else 1.0
