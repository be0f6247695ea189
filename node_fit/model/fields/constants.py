"""The constants of known equations: named numbers with bounds, which are fitted."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...data.bounds import LARGEST, Bounds, check_bounds, check_inside, from_line, is_number, to_line
from ...runtime.stored_names import stored_as
from .equations import check_name

# Drawn constants lie within this factor of the given ones.
AROUND = 10.0


@stored_as("Constants")
class Constants(eqx.Module):
    """Named numbers, such as reaction rates, that are fitted within their bounds.

    **Arguments:** (`Constants.of` makes and checks them.)

    - `raw`: the trained parameters, shape `(constant,)`: each constant, mapped from its bounds to the real line and
      divided by its scale.
    - `names`: the constants' names.
    - `bounds`: lower and upper bound of each constant, `None` where there is none.
    - `scales`: the scale of each constant: its initial magnitude if it has no bounds, else 1.
    """

    raw: Float[Array, " constant"]
    names: tuple[str, ...] = eqx.field(static=True)
    bounds: tuple[Bounds, ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)

    @staticmethod
    def of(constants: Mapping[Any, Any]) -> "Constants":
        """Makes constants from their initial values.

        **Arguments:**

        - `constants`: for each name a number, or `[value, lower, upper]` with `None` where there is no bound; in the
            user's units.

        **Raises:** `ValueError` if a name is invalid in an equation, or a value is not a number within its bounds.
        """
        values, bounds = [], []
        for name, entry in constants.items():
            check_name(name, "constant")
            value, pair = value_and_bounds(entry, f"constant {name!r}")
            values.append(value)
            bounds.append(pair)
        scales = [
            abs(value) or 1.0 if pair == (None, None) else 1.0 for value, pair in zip(values, bounds, strict=True)
        ]
        line = [to_line(np.asarray(value), pair) for value, pair in zip(values, bounds, strict=True)]
        raw = jnp.asarray(np.array(line, np.float64) / np.array(scales, np.float64), float)
        return Constants(raw, tuple(constants), tuple(bounds), tuple(scales))

    def values(self) -> dict[str, Float[Array, ""]]:
        """The constants by name, in the user's units and the dtype of `raw`."""
        return self.named(self.raw)

    def drawn(self, rng: np.random.Generator) -> "Constants":
        """Other constants, drawn around these: their distance from a single bound, or their size without bounds, is
        log-uniform within a factor of ten; between two bounds they are uniform."""
        given = self.as_dict().values()
        values = [draw(value, bounds, rng) for value, bounds in zip(given, self.bounds, strict=True)]
        line = [
            to_line(np.asarray(value), bounds) / scale
            for value, bounds, scale in zip(values, self.bounds, self.scales, strict=True)
        ]
        return replace(self, raw=jnp.asarray(np.array(line, np.float64), self.raw.dtype))

    def as_dict(self) -> dict[str, float]:
        """The constants by name, in the user's units, as Python floats."""
        raw = np.asarray(jax.device_get(self.raw), np.float64)
        return {name: float(value) for name, value in self.named(raw).items()}

    def named(self, raw: Float[Any, " constant"]) -> dict[str, Any]:
        parts = zip(self.names, raw, self.scales, self.bounds, strict=True)
        return {name: from_line(part * scale, bounds) for name, part, scale, bounds in parts}


def draw(value: float, bounds: Bounds, rng: np.random.Generator) -> float:
    """A value around another, within its bounds."""
    lower, upper = bounds
    if lower is not None and upper is not None:
        return lower + (upper - lower) * rng.uniform(0.01, 0.99)
    factor = AROUND ** rng.uniform(-1, 1)
    if lower is not None:
        return lower + (value - lower) * factor
    if upper is not None:
        return upper - (upper - value) * factor
    return value * factor if value else rng.uniform(-1, 1)


def value_and_bounds(entry: Any, name: str) -> tuple[float, Bounds]:
    """Reads the initial value and the bounds of a constant from its entry."""
    if isinstance(entry, list | tuple) and len(entry) != 3:
        raise ValueError(f"{name} must be a number or [value, lower, upper], got a list of {len(entry)}.")
    value, *bounds = entry if isinstance(entry, list | tuple) else (entry, None, None)
    if not is_number(value):
        raise ValueError(f"{name} must be a number of magnitude up to {LARGEST:g}, got {value!r:.40}.")
    pair = check_bounds(bounds, name)
    check_inside(np.asarray(value, np.float64), pair, name)
    return float(value), pair
