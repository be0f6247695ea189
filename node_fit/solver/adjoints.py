"""How gradients pass through adaptive steps, by name."""

from collections.abc import Callable
from typing import Literal

import diffrax

ADJOINTS: dict[str, Callable[[], diffrax.AbstractAdjoint]] = {
    "checkpointed": diffrax.RecursiveCheckpointAdjoint,
    "direct": diffrax.DirectAdjoint,
    "backsolve": diffrax.BacksolveAdjoint,
    "forward": diffrax.ForwardMode,
}
Adjoint = Literal["checkpointed", "direct", "backsolve", "forward"]
