"""Solved trajectories."""

import equinox as eqx
from jaxtyping import Array, Bool, Float


class Solution(eqx.Module):
    """Solved trajectories.

    - `ys`: states at the requested times, shape `(trajectory, time, state)`; not finite from where a solve failed.
    - `ok`: whether each trajectory was solved to its end, shape `(trajectory,)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]


class HeldSolution(eqx.Module):
    """Trajectories solved over held steps.

    - `ys`, `ok`: as in `Solution`.
    - `errors`: the estimated error of each step relative to its tolerance, shape `(trajectory, step)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]
    errors: Float[Array, "trajectory step"]
