"""Constants at the ends of their ranges, where a fit has driven them and the data tell nothing of them."""

import numpy as np

from ..data.domains import Bounds
from ..model import parameters
from ..model.fields.known import Constants, value_and_bounds
from ..model.make_model import keyword
from ..model.neural_ode import NeuralODE
from ..options.options import Options
from ..runtime.validation import is_mapping

# A constant this many times nearer to its only bound than its first value, or farther from it, is at an end.
FARTHEST_END = 1e10
# A constant nearer to one of two bounds than this share of their distance is at it.
NEAREST_BOUND = 1e-6


def describe_constants_at_ends(model: NeuralODE, options: Options) -> list[str]:
    """A clause for each constant of a fitted model that has run to an end of its range.

    **Arguments:** `options`: of the fit, with the first values of the constants.
    """
    first = first_values(options)
    clauses: list[str] = []
    for _, group in parameters.parameter_nodes(model, Constants):
        values = group.as_dict()
        origins = {member: local.name for local in group.local for member in local.members}
        for name, bounds, _ in group.free():
            clause = describe_constant_at_end(values[name], bounds, first.get(origins.get(name, name)))
            clauses += [] if clause is None else [f"{name} has run to {clause}"]
    return clauses


def first_values(options: Options) -> dict[str, float]:
    """The values from which the constants of equations, starts and observations have begun."""
    groups = [keyword(part, "constants") for part in (options.field, options.start, options.observation)]
    return {
        str(name): value_and_bounds(entry, str(name))[0]
        for group in groups
        if is_mapping(group)
        for name, entry in group.items()
    }


def describe_constant_at_end(value: float, bounds: Bounds, first: float | None) -> str | None:
    """Which end of its range a constant is at; None if it is at none."""
    lower, upper = bounds
    if not np.isfinite(value):
        return f"{value:g}"
    if lower is not None and upper is not None:
        at = [bound for bound in (lower, upper) if abs(value - bound) <= NEAREST_BOUND * (upper - lower)]
        return f"its bound {at[0]:g}" if at else None
    bound = next((each for each in bounds if each is not None), 0.0)
    distance, begun = abs(value - bound), None if first is None else abs(first - bound)
    if begun is None or begun == 0:
        return None
    if distance * FARTHEST_END <= begun and bounds != (None, None):
        return f"{value:.3g}, its bound being {bound:g} and its first value {first:g}"
    if distance >= FARTHEST_END * begun:
        return f"{value:.3g} from its first value, {first:g}"
    return None
