"""Tells sensors that cut off what they measure from states that stop at an end themselves.

Linear models are fitted to windows of a record, once to all values, and once without those at an end. If a sensor cuts
them off, the second models predict the other rows much better. A state that stops, such as the level of a tank that
overflows, would go on in models that have not seen it stop, which then predict the rows after it worse.
"""

import numpy as np

from ..data.batch import Batch
from ..data.clipping import find_ends
from ..data.dataset import Dataset
from ..data.domains import Bounds
from ..data.scaling import Scaler
from .linear_model import SimulationRecord, linear_models, simulate

# Number of hidden states of the models that are compared.
HIDDEN_OF_CLIPPED = 2
# Maximum size of a window, and as a share of the longest record; number of windows; rows up to a start, and the minimum
# number of rows of a window.
LARGEST_WINDOW, SHARE_OF_RECORD, MANY_WINDOWS, ROWS_TO_START, FEWEST_OF_WINDOW = 128, 1 / 3, 24, 10, 20
# Error of the models without the values at an end, relative to that of the others, from which a sensor cuts these off.
# Of 24 clipped sensors of simulated springs and heaters, 23 are below, and of 12 tanks that overflow 5.
CUT_OFF = 0.7


def find_ranges(data: Dataset) -> dict[str, Bounds]:
    """Finds states whose sensor is clipped at the end of its range.

    **Arguments:** `data`: trajectories.

    **Returns:** the lower and the upper end of the range of each such sensor, None for an end that is not reached;
    `data.clip(ranges)` marks the values there as censored. Empty without inputs that move, for short records, and where
    a state may stop itself.
    """
    ends = find_ends(data)
    window = min(LARGEST_WINDOW, int(data.lengths.max() * SHARE_OF_RECORD))
    if not (ends and data.is_driven) or window < FEWEST_OF_WINDOW:
        return {}
    without, with_all = compare_linear_models(data, data.clip(ends), window)
    return ends if without <= CUT_OFF * with_all else {}


def compare_linear_models(data: Dataset, clipped: Dataset, window: int) -> tuple[float, float]:
    """Computes the errors of linear models on exact values, fitted without the values at an end, and to all values."""
    kind, step = data.input_interpolation[0], data.median_step
    scaler = Scaler.from_dataset(data)
    parts = [part.resample(step, kind) for part in (clipped, data)]
    stride = max(int(parts[0].lengths.sum()) // MANY_WINDOWS, 1)
    windows = [
        Batch.from_dataset(part.windows(window, stride).sample(MANY_WINDOWS), scaler, ROWS_TO_START) for part in parts
    ]
    exact = SimulationRecord.of(windows[0], kind)
    errors: list[float] = []
    for batch, part in zip(windows, parts, strict=True):
        record = Batch.from_dataset(part, scaler)
        (model,) = linear_models(batch, batch, record, kind, HIDDEN_OF_CLIPPED)
        off = simulate(model.system, exact)[1:, :, : exact.ys.shape[2]] - exact.ys
        errors.append(float(np.sqrt(np.mean(off[exact.mask > 0] ** 2))))
    return errors[0], errors[1]
