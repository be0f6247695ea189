"""How records are sampled: whether inputs are held between rows, and interpolation to evenly spaced times."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from .dataset import Dataset, pad

# Inputs with at most so many levels, or that change in fewer than this share of their rows, are held.
FEW_LEVELS, RARELY = 8, 0.5


def detect_input_hold(data: Dataset) -> tuple[str, str]:
    """`hold` or `linear`, and the reason."""
    changed = np.diff(data.us, axis=1)[data.valid[:, 1:]] != 0
    share = float(changed.any(axis=1).mean())
    levels = max(len(np.unique(data.us[..., index][data.valid])) for index in range(data.us.shape[2]))
    if levels <= FEW_LEVELS:
        return "hold", f"the inputs have {levels} levels"
    return "hold" if share < RARELY else "linear", f"the inputs change in {share:.0%} of the rows"


def are_held(data: Dataset) -> bool:
    """Whether the inputs, if there are any, look as if they were held."""
    return data.us.shape[1] > 1 and data.us.shape[2] > 0 and detect_input_hold(data)[0] == "hold"


# Times are evenly spaced if all steps between rows agree to within this share.
EVEN = 0.01
# Measurements more than this many steps apart are not interpolated.
LARGEST_GAP = 3


def median_step(data: Dataset) -> float:
    """The median time between two rows [unit of time]."""
    return float(np.median(np.diff(data.ts, axis=1)[data.valid[:, 1:]]))


def sample_evenly(data: Dataset, step: float, inputs: str) -> Dataset:
    """The same trajectories at evenly spaced times, by interpolation; evenly spaced data are returned as they are.

    **Arguments:**

    - `step`: time between two rows [unit of time].
    - `inputs`: how inputs are interpolated, `hold` or `linear`. States are interpolated linearly between neighbouring
      rows, and are missing in wide gaps.
    """
    steps = np.diff(data.ts, axis=1)[data.valid[:, 1:]]
    if np.allclose(steps, step, rtol=EVEN, atol=0):
        return data
    parts = [resample(data, row, step, inputs) for row in range(len(data.lengths))]
    lengths = np.array([len(ts) for ts, *_ in parts])
    longest = int(lengths.max())
    ts, ys, us, scored = zip(*parts, strict=True)
    return replace(
        data,
        ts=pad(list(ts), longest, None),
        ys=pad(list(ys), longest, np.nan),
        us=pad(list(us), longest, None),
        lengths=lengths,
        scored=pad(list(scored), longest, 0.0) > 0,
        sigma=None,  # Of what is interpolated, it is not known.
    )


def resample(data: Dataset, row: int, step: float, inputs: str) -> tuple[np.ndarray, ...]:
    """Times, states, inputs and whether a row counts, of one trajectory."""
    rows = slice(int(data.lengths[row]))
    t, y, u = data.ts[row, rows], data.ys[row, rows], data.us[row, rows]
    # A rounding error must not cost the last row.
    times = t[0] + step * np.arange(int((t[-1] - t[0]) / step + EVEN) + 1)
    before = np.searchsorted(t, times + EVEN * step, side="right") - 1
    states = np.stack([interpolate_rows(times, t, y[:, channel], step) for channel in range(y.shape[1])], axis=1)
    held = u[before]
    controls = (
        held if inputs == "hold" else np.stack([np.interp(times, t, each) for each in u.T], axis=1).reshape(held.shape)
    )
    return times, states, controls, data.scored[row, rows][before]


def interpolate_rows(
    times: Float[np.ndarray, " wanted"],
    t: Float[np.ndarray, " row"],
    values: Float[np.ndarray, " row"],
    step: float,
) -> Float[np.ndarray, " wanted"]:
    """A channel at times between its measurements; NaN where these are far apart."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(times), np.nan)
    t, values = t[known], values[known]
    after = np.clip(np.searchsorted(t, times - EVEN * step), 0, len(t) - 1)
    before = np.clip(np.searchsorted(t, times + EVEN * step, side="right") - 1, 0, len(t) - 1)
    near = t[after] - t[before] <= LARGEST_GAP * step
    inside = (times >= t[0] - EVEN * step) & (times <= t[-1] + EVEN * step)
    return np.where(near & inside, np.interp(times, t, values), np.nan)
