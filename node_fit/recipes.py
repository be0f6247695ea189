"""Recipes: lists of stages that find the dynamics by themselves, as data."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .dataset import Dataset
from .model import NeuralODE
from .objectives import AbstractObjective, DerivativeMatching, TrajectoryMatching
from .optimizers import LBFGS, AbstractOptimizer
from .stage import Stage


@dataclass(frozen=True)
class Plan:
    """A stage of a recipe; what is left out is as in the fit's main stage.

    **Arguments:**

    - `objective`: an objective; or something that makes one, such as
      `functools.partial(MultipleShooting, rows=20)`, whose `solver` and `penalty` are the fit's.
    - `optimizer`, `steps`, `batch_size`, `clip`: see `Stage`.
    - `instead_of`: the name of a stage; this one is taken only if that one can't be.
    """

    objective: AbstractObjective | Callable[..., AbstractObjective] = TrajectoryMatching
    optimizer: AbstractOptimizer | None = None
    steps: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    instead_of: str | None = None


@dataclass(frozen=True)
class Recipe:
    """Plans of stages by their names, in the order in which they are taken.

    **Raises:** `ValueError` if there is none, or one stands for a stage that does not come before it.
    """

    stages: Mapping[str, Plan]

    def __post_init__(self):
        if not self.stages:
            raise ValueError("a recipe must hold at least one stage.")
        before: list[str] = []
        for name, plan in self.stages.items():
            if plan.instead_of is not None and plan.instead_of not in before:
                raise ValueError(f"stage {name!r} is instead of {plan.instead_of!r}, which is no stage before it.")
            before.append(name)


# Rows of a trajectory that is still solved from its beginning to its end in every step.
LONGEST = 3_000

DEFAULT = Recipe({"derivative": Plan(DerivativeMatching, LBFGS(), 300), "main": Plan()})
DIRECT = Recipe({"main": Plan()})
RECIPES = {"default": DEFAULT, "direct": DIRECT}


@dataclass(frozen=True)
class Kitchen:
    """What a fit gives to the stages of its recipe.

    - `main`: the main stage, whose objective is `TrajectoryMatching`.
    - `model`, `train`: what is fitted to what.
    - `notes`: why stages were left out, in words for the log.
    """

    main: Stage
    model: NeuralODE
    train: Dataset
    notes: list[str] = field(default_factory=list)

    def stages(self, recipe: Recipe) -> tuple[Stage, ...]:
        """The stages that make sense for the model and the data.

        If the main objective looks at windows, a stage on these comes before each one on whole trajectories, since a
        field that is right over a window may still blow up later.
        """
        taken: dict[str, Stage] = {}
        for name, plan in recipe.stages.items():
            if plan.instead_of in taken:
                continue
            stage = self.stage(name, plan)
            reason = stage.objective.why_not(self.model, self.train)
            if reason is None:
                taken |= {part.name: part for part in self.in_windows(stage)}
            else:
                self.notes.append(reason)
        return tuple(taken.values())

    def stage(self, name: str, plan: Plan) -> Stage:
        main = self.main
        optimizer = plan.optimizer or main.optimizer
        full = optimizer.full_batch and plan.optimizer is not None
        return Stage(
            objective=self.objective(plan),
            optimizer=optimizer,
            steps=plan.steps or main.steps,
            name=name,
            batch_size=plan.batch_size if full else plan.batch_size or main.batch_size,
            clip=plan.clip if full else plan.clip or main.clip,
        )

    def objective(self, plan: Plan) -> AbstractObjective:
        if isinstance(plan.objective, AbstractObjective):
            return plan.objective
        ours = self.main.objective
        accepted = inspect.signature(plan.objective).parameters
        given = plan.objective.keywords if isinstance(plan.objective, functools.partial) else {}
        offered: dict[str, Any] = {
            key: getattr(ours, key) for key in ("solver", "penalty", "window", "stride") if key not in given
        }
        if "horizon" in given:  # a growing prefix of windows is none
            offered |= {"window": None, "stride": None}
        return plan.objective(**{key: value for key, value in offered.items() if key in accepted})

    def in_windows(self, stage: Stage) -> tuple[Stage, ...]:
        """A stage, or if it looks at windows one on these and one on whole trajectories, if these are not too long."""
        objective = stage.objective
        if not isinstance(objective, TrajectoryMatching) or objective.window is None:
            return (stage,)
        windows = replace(stage, name="windows")
        longest = int(self.train.lengths.max())
        if longest > LONGEST:
            self.notes.append(f"no stage on whole trajectories, since the longest has {longest} rows, over {LONGEST}")
            return (windows,)
        whole = replace(objective, window=None, stride=None)
        # Whole trajectories may be few, so that minibatches of windows' size are none of them.
        return windows, replace(stage, objective=whole, batch_size=None)
