"""Recipes: lists of stages that find the dynamics by themselves."""

from typing import Literal

from .dataset import Dataset
from .objectives import DerivativeMatching
from .optimizers import LBFGS
from .smoothing import FEWEST
from .training import Stage

Recipe = Literal["default", "direct"]


def make_stages(recipe: str, main: Stage, ridge: float, train: Dataset) -> tuple[Stage, ...]:
    """The stages of a recipe by name.

    **Raises:** `ValueError` if the name is unknown.
    """
    if recipe not in ("default", "direct"):
        raise ValueError(f"recipe must be default or direct, got {recipe!r}.")
    enough = (train.mask.sum(axis=1) >= FEWEST).all(axis=1).any()
    if recipe == "direct" or not enough:
        return (main,)
    return (Stage(DerivativeMatching(ridge=ridge), LBFGS(), 300, "derivative"), main)
