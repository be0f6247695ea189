"""What node_fit and the libraries that it calls import from jaxtyping.

Jaxtyping leaves `PyTree` unknown to type checkers, and with it what every function of Equinox, Diffrax and Optax
takes and returns. Here it is what it says: any tree, of leaves that may be named.
"""

from typing import Annotated as Bool
from typing import Annotated as Complex
from typing import Annotated as Float
from typing import Annotated as Inexact
from typing import Annotated as Int
from typing import Annotated as Num
from typing import Annotated as Real
from typing import Annotated as Shaped
from typing import Any, TypeAlias

from jax import Array
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike, DTypeLike
from typing_extensions import TypeVar

__all__ = [
    "AbstractArray",
    "Array",
    "ArrayLike",
    "Bool",
    "Complex",
    "DTypeLike",
    "Float",
    "Inexact",
    "Int",
    "Num",
    "PRNGKeyArray",
    "PyTree",
    "PyTreeDef",
    "Real",
    "Scalar",
    "ScalarLike",
    "Shaped",
]

Leaf = TypeVar("Leaf", default=Any)
PyTree: TypeAlias = Any | Leaf
PRNGKeyArray: TypeAlias = Array
Scalar: TypeAlias = Array
ScalarLike: TypeAlias = ArrayLike

class AbstractArray: ...

def __getattr__(name: str) -> Any: ...
