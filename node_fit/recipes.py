"""Recipes: lists of stages that find the dynamics by themselves."""

from dataclasses import replace
from typing import Literal

from .dataset import Dataset
from .model import NeuralODE
from .objectives import DerivativeMatching, TrajectoryMatching
from .optimizers import LBFGS
from .smoothing import FEWEST
from .training import Stage

Recipe = Literal["default", "direct"]


def make_stages(recipe: str, main: Stage, model: NeuralODE, train: Dataset) -> tuple[Stage, ...]:
    """The stages of a recipe by name.

    The default begins with derivative matching, where all states were measured. If the main stage looks at windows,
    one on whole trajectories comes after it, since a field that is right over a window may still blow up later.

    **Raises:** `ValueError` if the name is unknown.
    """
    if recipe not in ("default", "direct"):
        raise ValueError(f"recipe must be default or direct, got {recipe!r}.")
    objective = main.objective
    assert isinstance(objective, TrajectoryMatching)
    stages = [main]
    if objective.window is not None:
        whole = replace(objective, window=None, stride=None)
        # Whole trajectories may be few, so that minibatches of windows' size are none of them.
        stages = [replace(main, name="windows"), replace(main, objective=whole, batch_size=None)]
    if recipe == "default" and why_no_derivatives(model, train) is None:
        stages.insert(0, Stage(DerivativeMatching(ridge=objective.ridge), LBFGS(), 300, "derivative"))
    return tuple(stages)


def why_no_derivatives(model: NeuralODE, train: Dataset) -> str | None:
    """Why a recipe can't begin with derivative matching, in words for the log; None if it can."""
    if not model.is_measured:
        return "no derivative stage, since nobody knows the derivatives of states that are not measured"
    if not (train.mask.sum(axis=1) >= FEWEST).all(axis=1).any():
        return f"no derivative stage, since no trajectory has {FEWEST} measurements of every state"
    return None
