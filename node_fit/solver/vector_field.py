"""The right-hand side that a solver calls."""

from collections.abc import Callable

from jaxtyping import Array, Float

VectorField = Callable[[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]], Float[Array, " state"]]
