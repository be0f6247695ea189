"""What node_fit takes from Lineax, as its source hints it; it ships without a mark that these hints count."""

from typing import Any

from lineax._operator import AbstractLinearOperator as AbstractLinearOperator
from lineax._operator import FunctionLinearOperator as FunctionLinearOperator
from lineax._operator import MatrixLinearOperator as MatrixLinearOperator
from lineax._solution import Solution as Solution
from lineax._solve import AbstractLinearSolver as AbstractLinearSolver
from lineax._solve import AutoLinearSolver as AutoLinearSolver
from lineax._solver import CG as CG
from lineax._solver import Cholesky as Cholesky
from lineax._tags import positive_semidefinite_tag as positive_semidefinite_tag

def linear_solve(
    operator: AbstractLinearOperator, vector: Any, solver: AbstractLinearSolver[Any] = ..., *, throw: bool = True
) -> Solution: ...
def __getattr__(name: str) -> Any: ...
