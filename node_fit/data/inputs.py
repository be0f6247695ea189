"""Inputs between rows: held, on lines or on cubics, each by its own column."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float

from .levels import level_out

if TYPE_CHECKING:
    from scipy.interpolate import CubicHermiteSpline

Interpolation = Literal["linear", "hold", "cubic"]
INTERPOLATIONS = ("linear", "hold", "cubic")
# One kind for all inputs, or one for each.
Interpolations = str | tuple[str, ...]
# Degrees of the polynomials between two rows.
DEGREES = {"hold": 0, "linear": 1, "cubic": 3}

# Inputs with at most this many levels, or that change in less than this fraction of their rows, are held.
FEW_LEVELS, RARELY = 8, 0.5
# An input is smooth if, at every other row, the error of cubics through the remaining rows is at most this fraction of
# the error of lines; for a noisy input, both errors equal the noise.
SMOOTH = 0.25
# Minimum number of skipped rows to compare errors; and of rows in a record, since shorter ones have no row between two
# cubics.
FEWEST_MISSED, FEWEST_SPLIT = 8, 7
# Maximum number of trajectories examined.
MOST_LOOKED_AT = 64


def kinds_by_input(kinds: Interpolations, inputs: int) -> tuple[str, ...]:
    """Returns the interpolation of each input.

    **Raises:** `ValueError` if `kinds` has another number of them.
    """
    if isinstance(kinds, str):
        return (kinds,) * inputs
    if len(kinds) != inputs:
        raise ValueError(
            f"solver.inputs names {len(kinds)} interpolations, but there are {inputs} inputs; give one for all, or one "
            "for each."
        )
    return tuple(kinds)


def are_held(kinds: Interpolations, inputs: int) -> tuple[bool, ...]:
    """Whether each input is held between rows."""
    return tuple(kind == "hold" for kind in kinds_by_input(kinds, inputs))


def inputs_at_step_ends(
    us: Float[np.ndarray, "... row input"], kinds: Interpolations
) -> Float[np.ndarray, "... row input"]:
    """Returns the inputs just before the next row: those of that row, or of their own row if they are held."""
    following = np.concatenate([us[..., 1:, :], us[..., -1:, :]], axis=-2)
    return np.where(np.array(are_held(kinds, us.shape[-1]), bool), us, following)


def detect_interpolation(
    ts: Float[np.ndarray, "trajectory time"],
    us: Float[np.ndarray, "trajectory time input"],
    valid: Bool[np.ndarray, "trajectory time"],
    names: Sequence[str],
) -> tuple[Interpolations, str]:
    """Detects how inputs behave between rows, and says why: one kind for all, or one for each.

    Inputs that never change have no say. Cubics need all inputs that are not held to be smooth.

    **Arguments:** `ts`: times. `us`: inputs. `valid`: rows that are not padding. `names`: of the inputs.
    """
    moving = np.flatnonzero((np.diff(us, axis=1)[valid[:, 1:]] != 0).any(axis=0)).tolist()
    held = [index for index in moving if looks_held(us[..., index], valid)]
    curved = [index for index in moving if index not in held]
    if not curved:
        return "hold", describe_held(us[..., held or slice(None)], valid)
    if all(is_smooth(ts, us[..., index], valid) for index in curved):
        kind, reason = "cubic", "smooth: from every second row, cubics give the others better than lines do"
    else:
        kind, reason = "linear", f"in {share_of_changes(us[..., curved], valid):.0%} of the rows"
    if not held:
        return kind, f"the inputs {'are' if kind == 'cubic' else 'change'} {reason}"
    listed = [" and ".join(names[index] for index in group) for group in (held, curved)]
    verb = ("is" if len(curved) == 1 else "are") if kind == "cubic" else "changes" if len(curved) == 1 else "change"
    kinds = tuple(kind if index in curved else "hold" for index in range(us.shape[2]))
    return kinds, f"{describe_held(us[..., held], valid, listed[0], len(held))}, {listed[1]} {verb} {reason}"


def looks_held(u: Float[np.ndarray, "trajectory time"], valid: Bool[np.ndarray, "trajectory time"]) -> bool:
    """Whether an input appears to be held between rows: but for noise, it has few levels or changes rarely."""
    levels = without_noise(u[..., None], valid)
    return len(np.unique(levels[valid])) <= FEW_LEVELS or share_of_changes(levels, valid) < RARELY


def without_noise(
    us: Float[np.ndarray, "trajectory time input"], valid: Bool[np.ndarray, "trajectory time"]
) -> Float[np.ndarray, "trajectory time input"]:
    """Returns inputs that jump between levels without the noise of their sensors; others as they are."""
    trajectory = np.nonzero(valid)[0]
    pairs, levels = np.flatnonzero(trajectory[1:] == trajectory[:-1]), us.astype(np.float64)
    for index in range(us.shape[2]):
        levels[..., index][valid] = level_out(levels[..., index][valid], pairs)
    return levels


def share_of_changes(
    us: Float[np.ndarray, "trajectory time input"], valid: Bool[np.ndarray, "trajectory time"]
) -> float:
    """Returns the share of rows at which an input changes."""
    return float((np.diff(us, axis=1)[valid[:, 1:]] != 0).any(axis=1).mean())


def describe_held(
    us: Float[np.ndarray, "trajectory time input"],
    valid: Bool[np.ndarray, "trajectory time"],
    subject: str = "the inputs",
    count: int = 2,
) -> str:
    """Describes why inputs are held, by their levels or the rows at which they change."""
    us, columns = without_noise(us, valid), range(us.shape[2])
    levels = max(len(np.unique(us[..., index][valid])) for index in columns)
    if levels <= FEW_LEVELS:
        return f"{subject} {'has' if count == 1 else 'have'} {levels} levels"
    share = max(share_of_changes(us[..., [index]], valid) for index in columns)
    most = "at most " if len(columns) > 1 else ""
    return f"{subject} {'changes' if count == 1 else 'change'} in {most}{share:.0%} of the rows"


def interpolate_input(
    t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"], *, held: bool = False
) -> Callable[[Float[np.ndarray, "*times"]], Float[np.ndarray, "*times"]]:
    """Returns an input as a function of time: held between rows, or piecewise cubic if it is smooth, else linear."""
    if held:
        return lambda wanted: u[np.clip(np.searchsorted(t, wanted, side="right") - 1, 0, len(u) - 1)]
    if is_smooth(t[None], u[None], np.ones((1, len(t)), bool)):
        return cubics_through(t, u)
    return lambda wanted: np.interp(wanted, t, u)


def cubics_through(t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"]) -> "CubicHermiteSpline":
    """Returns a solver's cubics with `inputs="cubic"`: a row's slope is that of the parabola through its neighbours."""
    from scipy.interpolate import CubicHermiteSpline

    return CubicHermiteSpline(t, u, np.gradient(u, t))


def is_smooth(ts: np.ndarray, us: np.ndarray, valid: np.ndarray) -> bool:
    """Whether cubics through every second row are much closer to the rows between than lines are."""
    looked_at = np.unique(np.linspace(0, len(ts) - 1, MOST_LOOKED_AT).astype(int))
    missed = [miss_rows_between(ts[row, valid[row]], us[row, valid[row]]) for row in looked_at]
    lines, cubics = np.concatenate(missed, axis=1)
    return lines.size >= FEWEST_MISSED and bool(np.sum(cubics**2) <= SMOOTH**2 * np.sum(lines**2))


def miss_rows_between(t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"]) -> Float[np.ndarray, "2 missed"]:
    """Computes the errors of lines and cubics through every second row at the rows between, without the first and the
    last of them, whose cubics have a single neighbour."""
    if len(t) < FEWEST_SPLIT or np.min(np.diff(t)) <= 0:
        return np.zeros((2, 0))
    t, u = (values[: len(t) - 1 + len(t) % 2].astype(np.float64) for values in (t, u))
    between, measured = t[1::2], u[1::2]
    curves = np.stack([np.interp(between, t[::2], u[::2]), cubics_through(t[::2], u[::2])(between)])
    return (curves - measured)[:, 1:-1]
