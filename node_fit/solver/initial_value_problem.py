"""Initial value problems, which solvers solve."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from ..data.events import Jumps
from .vector_field import VectorField


class InitialValueProblem(eqx.Module):
    """Trajectories of one vector field, each with its own start and inputs.

    - `field`: called with `(t, y, u)` of one trajectory.
    - `ts`: times of the inputs since `origin`, shape `(trajectory, time)`; a trajectory starts at its first.
    - `y0`: states at the first time, shape `(trajectory, state)`.
    - `us`: inputs at `ts`, shape `(trajectory, time, input)`.
    - `origin`: the field's time where `ts` is 0, shape `(trajectory,)`.
    - `bound`: magnitude of each state beyond which a solution over held steps has diverged, shape `(state,)`; no bound
      if None.
    - `jumps`: jumps of the states just after the times `ts`, shape `(trajectory, time, state)`; None if there are none.
    """

    field: VectorField
    ts: Float[Any, "trajectory time"]
    y0: Float[Array, "trajectory state"]
    us: Float[Any, "trajectory time input"]
    origin: Float[Any, " trajectory"]
    bound: Float[Array, " state"] | None = None
    jumps: Jumps | None = None
