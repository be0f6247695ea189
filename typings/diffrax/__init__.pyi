"""What node_fit takes from Diffrax, which leaves unknown the terms that it solves and the states of its methods."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic

import equinox as eqx
from diffrax._adjoint import AbstractAdjoint as AbstractAdjoint
from diffrax._adjoint import BacksolveAdjoint as BacksolveAdjoint
from diffrax._adjoint import DirectAdjoint as DirectAdjoint
from diffrax._adjoint import ForwardMode as ForwardMode
from diffrax._adjoint import RecursiveCheckpointAdjoint as RecursiveCheckpointAdjoint
from diffrax._saveat import SaveAt as SaveAt
from diffrax._solution import RESULTS as RESULTS
from diffrax._solution import Solution as Solution
from diffrax._solver import ButcherTableau as ButcherTableau
from diffrax._step_size_controller import ClipStepSizeController as ClipStepSizeController
from diffrax._step_size_controller import ConstantStepSize as ConstantStepSize
from diffrax._step_size_controller import PIDController as OwnController
from diffrax._term import ODETerm as ODETerm
from typing_extensions import TypeVar

State = TypeVar("State", default=Any)

class AbstractSolver(eqx.Module, Generic[State]):
    interpolation_cls: ClassVar[Callable[..., Any]]
    def order(self, terms: Any) -> int | None: ...
    def error_order(self, terms: Any) -> float | None: ...

class AbstractERK(AbstractSolver):
    tableau: ClassVar[ButcherTableau | Any]

class AbstractImplicitSolver(AbstractSolver):
    root_finder: Any = ...

class Euler(AbstractSolver): ...
class Heun(AbstractERK): ...
class Bosh3(AbstractERK): ...
class Tsit5(AbstractERK): ...
class Dopri5(AbstractERK): ...
class Dopri8(AbstractERK): ...
class ImplicitEuler(AbstractImplicitSolver): ...
class Kvaerno3(AbstractImplicitSolver): ...
class Kvaerno5(AbstractImplicitSolver): ...

class PIDController(OwnController):
    def init(
        self,
        terms: Any,
        t0: Any,
        t1: Any,
        y0: Any,
        dt0: Any,
        args: Any,
        func: Callable[..., Any],
        error_order: Any,
    ) -> tuple[Any, Any]: ...

def diffeqsolve(terms: ODETerm[Any], solver: AbstractSolver[Any], **options: Any) -> Solution: ...
def __getattr__(name: str) -> Any: ...
