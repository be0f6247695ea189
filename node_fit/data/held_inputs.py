"""Whether inputs are held between rows, by what they look like."""

import numpy as np

from .dataset import Dataset

# Inputs with at most so many levels, or that change in fewer than this share of their rows, are held.
LEVELS, RARELY = 8, 0.5


def look_of_inputs(data: Dataset) -> tuple[str, str]:
    """`hold` or `linear`, and the reason."""
    changed = np.diff(data.us, axis=1)[data.valid[:, 1:]] != 0
    share = float(changed.any(axis=1).mean())
    levels = max(len(np.unique(data.us[..., index][data.valid])) for index in range(data.us.shape[2]))
    if levels <= LEVELS:
        return "hold", f"the inputs have {levels} levels"
    return "hold" if share < RARELY else "linear", f"the inputs change in {share:.0%} of the rows"


def are_held(data: Dataset) -> bool:
    """Whether the inputs, if there are any, look as if they were held."""
    return data.us.shape[1] > 1 and data.us.shape[2] > 0 and look_of_inputs(data)[0] == "hold"
