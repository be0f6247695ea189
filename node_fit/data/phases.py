"""The time of day, of the week and of the year as inputs: what people, the sun and the seasons do returns with them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .tables.times import SECONDS, Dates

# Periods [s].
PERIODS = {"day": 86_400.0, "week": 7 * 86_400.0, "year": 365.2425 * 86_400.0}
PHASES = {"day": "the time of day", "week": "the day of the week", "year": "the time of the year"}


def check_cycles(cycles: Sequence[str], inputs: Sequence[str], *, has_clock: bool) -> None:
    """Checks that data show the phases of cycles, and have no such inputs yet.

    **Raises:** `ValueError` that names the cycle or the input.
    """
    if taken := next((name for name in cycle_names(cycles) if name in inputs), None):
        raise ValueError(f"cycles: the data have an input {taken!r} already; rename it, or leave the cycle out.")
    if not has_clock:
        raise ValueError(
            f"cycles: a {cycles[0]} is no known number of time units; use dates as times, or give the unit of time, "
            f"one of {', '.join(SECONDS)}, in units."
        )


def cycle_names(cycles: Sequence[str]) -> list[str]:
    """Returns the names of the inputs of cycles."""
    return [f"{cycle}_{function}" for cycle in cycles for function in ("sin", "cos")]


# Names of the inputs of all cycles.
CYCLE_INPUTS = frozenset(cycle_names(list(PERIODS)))


def missing_cycles(fitted: Sequence[str], actual: Sequence[str]) -> list[str]:
    """Returns the cycles whose inputs a model was fitted to, but some data do not have."""
    return [cycle for cycle in PERIODS if {*cycle_names([cycle])} <= {*fitted} - {*actual}]


def describe_cycles(cycles: Sequence[str]) -> str:
    """Describes the inputs of cycles, as the object of a clause."""
    return " and ".join(PHASES[cycle] for cycle in cycles)


def cycle_inputs(
    cycles: Sequence[str], ts: Float[np.ndarray, "trajectory time"], dates: Dates | None, unit: str | None
) -> Float[np.ndarray, "trajectory time input"]:
    """Computes the sine and the cosine of each cycle's phase.

    **Arguments:** `ts`: times. `dates`: their dates, whose local time counts; without dates, phases count from time 0.
    `unit`: unit of times without dates.
    """
    phases = [2 * np.pi * find_phase(cycle, ts, dates, unit) for cycle in cycles]
    return np.stack([function(phase) for phase in phases for function in (np.sin, np.cos)], axis=-1)


def find_phase(
    cycle: str, ts: Float[np.ndarray, "trajectory time"], dates: Dates | None, unit: str | None
) -> Float[np.ndarray, "trajectory time"]:
    """Returns the phase of times in a cycle [turns], from midnight, Monday or New Year of the local time."""
    if dates is None:
        assert unit is not None
        return ts * SECONDS[unit] / PERIODS[cycle]
    trajectories = np.broadcast_to(np.arange(len(ts))[:, None], ts.shape)
    stamps = dates.stamps(trajectories.ravel(), ts.ravel()).tz_localize(None)
    day = (stamps - stamps.normalize()).total_seconds().to_numpy() / PERIODS["day"]
    if cycle == "week":
        phase = (stamps.day_of_week.to_numpy() + day) / 7
    elif cycle == "year":
        phase = (stamps.day_of_year.to_numpy() - 1 + day) / np.where(stamps.is_leap_year, 366, 365)
    else:
        phase = day
    return phase.reshape(ts.shape)
