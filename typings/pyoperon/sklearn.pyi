"""Symbolic regression, which ships no hints."""

from typing import Any

import numpy as np

class SymbolicRegressor:
    pareto_front_: list[dict[str, Any]]
    def __init__(self, **options: object) -> None: ...
    def fit(self, X: np.ndarray, y: np.ndarray) -> SymbolicRegressor: ...
