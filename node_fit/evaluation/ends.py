"""Detects constants that a fit has driven to the ends of their ranges, where the data do not determine them."""

import numpy as np

from ..data.domains import Bounds
from ..model import parameters
from ..model.fields.known import Constants, value_and_bounds
from ..model.make_model import keyword
from ..model.neural_ode import NeuralODE
from ..options.options import Options
from ..runtime.validation import is_mapping

# A constant is at an end if its distance from its only bound differs from that of its initial value by this factor.
FARTHEST_END = 1e10
# Fraction of the distance between two bounds within which a constant is at one of them.
NEAREST_BOUND = 1e-6


def describe_constants_at_ends(model: NeuralODE, options: Options) -> list[str]:
    """Describes each constant of a fitted model that has run to an end of its range.

    **Arguments:** `options`: options of the fit, with the initial values of the constants.
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
    """Returns the initial values of the constants of equations, starts and observations."""
    groups = [keyword(part, "constants") for part in (options.field, options.start, options.observation)]
    return {
        str(name): value_and_bounds(entry, str(name))[0]
        for group in groups
        if is_mapping(group)
        for name, entry in group.items()
    }


def describe_constant_at_end(value: float, bounds: Bounds, first: float | None) -> str | None:
    """Describes the end of its range at which a constant is; None if it is at neither."""
    lower, upper = bounds
    if not np.isfinite(value):
        return f"{value:g}"
    if lower is not None and upper is not None:
        reached = [bound for bound in (lower, upper) if abs(value - bound) <= NEAREST_BOUND * (upper - lower)]
        return f"its bound {reached[0]:g}" if reached else None
    bound = next((end for end in bounds if end is not None), 0.0)
    distance, begun = abs(value - bound), None if first is None else abs(first - bound)
    if begun is None or begun == 0:
        return None
    if distance * FARTHEST_END <= begun and bounds != (None, None):
        return f"{value:.3g}, its bound being {bound:g} and its first value {first:g}"
    if distance >= FARTHEST_END * begun:
        return f"{value:.3g} from its first value, {first:g}"
    return None
