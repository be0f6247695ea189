"""All that is chosen of a fit, and what it begins with because of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import jax
import numpy as np

from . import parameters
from .construction import MakeField, MakeObservation, MakeStart, make_model
from .dataset import Dataset
from .fields import MLP, VectorField
from .loop import Loop
from .members import Member
from .model import NeuralODE
from .objectives import Penalty, TrajectoryMatching
from .observations import MeasuredStates
from .observer import Silent
from .optimizers import LBFGS, AbstractOptimizer, Adam
from .placement import Placement
from .precision import Precision, ambient, precision_of
from .prior import choose_ridge, is_short
from .recipes import RECIPES, Kitchen, Recipe
from .solver import Solver
from .stage import Stage
from .starts import First
from .training import Scan, check_scan

# Tolerances of predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}
LOW_ORDER = ("euler", "heun", "bosh3")
MOST_STEPS = 16384
# Of the main stage, in fits that try a prior.
TRIAL_STEPS = 200


@dataclass(frozen=True)
class Setting:
    """What is chosen of a fit, besides its data; see `node_fit.fit`.

    **Raises:** `ValueError` if an argument is out of range.
    """

    field: MakeField | VectorField = MLP
    hidden: int | Sequence[str] = 0
    start: MakeStart = First
    observation: MakeObservation = MeasuredStates
    optimizer: AbstractOptimizer | None = None
    solver: Solver | None = None
    evaluation: Solver | None = None
    recipe: Recipe | str | Sequence[Stage] = "default"
    steps: int = 2000
    window: int | None = None
    stride: int | None = None
    batch_size: int | None = None
    clip: float | None = None
    ridge: float | Literal["auto"] = "auto"
    smoothness: float | None = None
    kinetic_energy: float | None = None
    physics: float | None = None
    freeze: Sequence[str] = ()
    scale: bool = True
    log: Sequence[str] = ()
    bounds: Mapping[str, Sequence[float | None]] | None = None
    chunk_steps: int = 100
    patience: int = 10
    scan: Scan = "lax"
    precision: Precision | None = None
    device: str = "auto"
    devices: int | None = 1
    seed: int = 0

    def __post_init__(self):
        if self.chunk_steps < 1 or self.patience < 1:
            raise ValueError(
                f"chunk_steps and patience must be at least 1, got {self.chunk_steps} and {self.patience}."
            )
        check_scan(self.scan)

    @property
    def kind(self) -> Precision:
        """The precision, of this setting or of the process."""
        return self.precision or ambient()

    @property
    def of_training(self) -> Solver:
        """The solver of training."""
        return self.solver or Solver()

    @cached_property
    def place(self) -> Placement:
        """What makes a tree's arrays leaves of the run's state."""
        return Placement(self.kind, self.device, self.devices)

    def model(self, data: Dataset) -> NeuralODE:
        """The model with its initial parameters."""
        model = make_model(
            data,
            field=self.field,
            hidden=self.hidden,
            start=self.start,
            observation=self.observation,
            solver=self.evaluation or with_tolerance(self.of_training, TIGHT[self.kind]),
            scale=self.scale,
            log=self.log,
            bounds=self.bounds,
            key=jax.random.split(jax.random.key(self.seed))[0],
        )
        precision_of(model.field)
        return model

    def member(self, model: NeuralODE, stages: Sequence[Stage], resample: int | None = None) -> Member:
        """A fit of this setting that is about to begin."""
        return Member(self.place.one(model), stages, self.seed, resample)

    def loop(self, members: Sequence[Member], train: Dataset, validation: Dataset | None) -> Loop:
        """A run of members of this setting, and of others like it."""
        options = {"freeze": self.freeze, "chunk_steps": self.chunk_steps, "patience": self.patience, "scan": self.scan}
        return Loop(members, train, validation, self.place, **options)

    def stages(self, model: NeuralODE, data: Dataset) -> tuple[Sequence[Stage], list[str], list[Loop]]:
        """The stages that make sense for the model and the data, notes on the choice, and the runs that it took.

        **Raises:** `ValueError` if none does.
        """
        notes: list[str] = []
        trials: list[Loop] = []
        if not isinstance(self.recipe, Recipe | str):
            return some(self.recipe), notes, trials
        ridge = self.ridge
        if ridge == "auto":
            ridge = 0.0
            if is_short(data, sum(leaf.size for leaf in parameters.weights(model.field))):

                def tried(part: Dataset, weight: float) -> np.ndarray:
                    trial = self.with_ridge(weight)
                    trials.append(trial.trial(part))
                    return trials[-1].fitted(trials[-1].run(Silent())[1]).predict(part)

                ridge = choose_ridge(data, tried)
                notes.append(f"a prior of train.ridge={ridge:g}, which predicts the ends of the training data best")
        kitchen = self.with_ridge(ridge).kitchen(model, data)
        stages = kitchen.stages(named(self.recipe))
        return some(stages), notes + kitchen.notes, trials

    def with_ridge(self, weight: float) -> "Setting":
        return replace(self, ridge=weight)

    def trial(self, data: Dataset) -> Loop:
        """A short fit."""
        short = replace(self, steps=min(self.steps, TRIAL_STEPS))
        model = short.model(data)
        stages, _, _ = short.stages(model, data)
        return short.loop([short.member(model, stages)], data, None)

    def kitchen(self, model: NeuralODE, data: Dataset) -> Kitchen:
        assert self.ridge != "auto"
        penalty = Penalty(self.ridge, self.smoothness, self.kinetic_energy, self.physics)
        objective = TrajectoryMatching(penalty, self.of_training, self.window, self.stride)
        optimizer = self.optimizer or (LBFGS() if self.batch_size is None else Adam())
        main = Stage(objective, optimizer, self.steps, "main", self.batch_size, self.clip)
        return Kitchen(main, model, data)


def some(stages: Sequence[Stage]) -> Sequence[Stage]:
    if not stages:
        raise ValueError("recipe must hold at least one stage that makes sense for the data.")
    return stages


def named(recipe: Recipe | str) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be {', '.join(RECIPES)} or a Recipe, got {recipe!r}.")
    return RECIPES[recipe]


def with_tolerance(solver: Solver, rtol: float) -> Solver:
    """A solver for predictions: at other tolerances, `atol` a hundredth of `rtol`, with steps that keep to them.

    What is cheap in training, a low order or steps that are fixed, is dear at tight tolerances.
    """
    method = "tsit5" if solver.method in LOW_ORDER else solver.method
    steps = max(solver.max_steps, MOST_STEPS)
    return replace(solver, method=method, rtol=rtol, atol=rtol / 100, steps="adaptive", max_steps=steps)
