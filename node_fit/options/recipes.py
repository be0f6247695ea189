"""Recipes: sequences of training stages, as data."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import optax

from ..data.dataset import Dataset
from ..data.facts import Facts
from ..model.make_model import is_plain, maker_class
from ..model.neural_ode import NeuralODE
from ..objectives.matching import DerivativeMatching, TrajectoryMatching
from ..objectives.objective import AbstractObjective
from ..optimizers.gradient import LBFGS, as_optimizer
from ..optimizers.optimizer import AbstractOptimizer
from ..runtime.validation import check_argument, check_fields, is_sequence
from ..training.task import Stage


@dataclass(frozen=True)
class Plan:
    """A stage of a recipe; it inherits unset options from the fit's main stage.

    **Arguments:**

    - `objective`: an objective, or a function `loss(model, batch)`; or a class of objectives, or a
      `functools.partial` of one such as `functools.partial(MultipleShooting, rows=20)`, which receives the fit's
      `solver` and `penalty`.
    - `optimizer`, `steps`, `batch_size`, `next_from`: see `Stage`.
    - `instead_of`: the name of an earlier stage; this stage runs only if the earlier one does not apply.
    """

    objective: AbstractObjective | Callable[..., Any] = TrajectoryMatching
    optimizer: AbstractOptimizer | optax.GradientTransformation | str | None = None
    steps: int | None = None
    batch_size: int | None = None
    instead_of: str | None = None
    next_from: Literal["best", "last"] = "best"

    def __post_init__(self):
        check_fields(self)
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", as_optimizer(self.optimizer))


@dataclass(frozen=True)
class Recipe:
    """A sequence of training stages: plans by name, in execution order.

    ```python
    node_fit.Recipe({"slopes": node_fit.Plan(node_fit.DerivativeMatching, steps=300), "main": node_fit.Plan()})
    ```

    **Raises:** `ValueError` if it is empty, a value is not a `Plan`, or `instead_of` names no earlier stage.
    """

    stages: Mapping[str, Plan]

    def __post_init__(self):
        check_fields(self, {"stages": "a dict of names and node_fit.Plan objects"})
        if not self.stages:
            raise ValueError("a recipe must hold at least one stage.")
        before: list[str] = []
        for name, plan in self.stages.items():
            check_argument(f"stage {name!r}", plan, Plan, "a node_fit.Plan")
            if plan.instead_of is not None and plan.instead_of not in before:
                raise ValueError(f"stage {name!r} has instead_of={plan.instead_of!r}, which is not an earlier stage.")
            before.append(name)


# Maximum number of rows in a trajectory that is solved as a whole in every step.
LONGEST_WINDOW = 3_000

DEFAULT_RECIPE = Recipe({"derivative": Plan(DerivativeMatching, LBFGS(), 300), "main": Plan()})
DIRECT_RECIPE = Recipe({"main": Plan()})
RECIPES = {"default": DEFAULT_RECIPE, "direct": DIRECT_RECIPE}
# Number of rows in the first growing windows, their growth factor, and the maximum number of window sizes.
SHORTEST_WINDOW, WINDOW_GROWTH, MOST_WINDOW_STAGES = 10, 2.5, 3
# Number of steps in a stage on growing windows, and approximate maximum number of windows.
STEPS_IN_GROWING, MOST_GROWING_WINDOWS = 15, 150


def growing_windows(train: Dataset, *, derivatives: bool) -> Recipe:
    """Returns a recipe of derivative matching (if requested), growing windows, and whole trajectories unless long.

    In short windows the simulation error has no time to grow, so even a poor initial field improves. Each stage
    begins where the last one ended (multiple shooting without its continuity: H. G. Bock, 1983).

    **Arguments:** `train`: the training data. `derivatives`: whether derivatives are fitted first. They initialize a
    polynomial well; a network fitted to noisy derivatives is far from any that predicts.
    """
    longest = int(train.lengths.max())
    first = max(SHORTEST_WINDOW, round(longest / 2 / WINDOW_GROWTH**MOST_WINDOW_STAGES))
    sizes = [size for power in range(MOST_WINDOW_STAGES) if (size := round(first * WINDOW_GROWTH**power)) < longest / 2]
    stages = {"derivative": Plan(DerivativeMatching, LBFGS(), 300, next_from="last")} if derivatives else {}
    for size in sizes:
        stride = max(size // 2, int(train.lengths.sum()) // MOST_GROWING_WINDOWS)
        objective = functools.partial(TrajectoryMatching, window=size, stride=stride)
        stages[f"windows of {size}"] = Plan(objective, steps=STEPS_IN_GROWING, next_from="last")
    if longest <= LONGEST_WINDOW:
        stages["main"] = Plan(steps=4 * STEPS_IN_GROWING)
    return Recipe(stages)


def make_stages(recipe: Recipe, main: Stage, model: NeuralODE, facts: Facts) -> tuple[tuple[Stage, ...], list[str]]:
    """Returns the stages of a recipe that apply to the model and the data, and the reasons for omitting others.

    If an objective uses windows, a stage on windows precedes one on whole trajectories, since a field that is accurate
    over a window can still diverge later.

    **Arguments:**

    - `recipe`: plans of stages.
    - `main`: the stage that provides a plan's unset options; its objective is `TrajectoryMatching`.
    - `model`, `facts`: the model, and the facts of its training data.
    """
    taken: dict[str, Stage] = {}
    notes: list[str] = []
    for name, plan in recipe.stages.items():
        if plan.instead_of in taken:
            continue
        stage = make_stage(name, plan, main)
        reason = stage.objective.why_not(model, facts)
        if reason is not None:
            notes.append(reason)
            continue
        parts, more = ((stage,), []) if has_own_window(plan) else windows_first(stage, facts)
        taken |= {part.name: part for part in parts}
        notes += more
    return tuple(taken.values()), notes


def has_own_window(plan: Plan) -> bool:
    return "window" in getattr(plan.objective, "keywords", {})


def make_stage(name: str, plan: Plan, main: Stage) -> Stage:
    """Makes the stage of a plan."""
    optimizer = main.optimizer if plan.optimizer is None else as_optimizer(plan.optimizer)
    full = optimizer.full_batch and plan.optimizer is not None
    return Stage(
        objective=make_objective(plan, main.objective),
        optimizer=optimizer,
        steps=plan.steps or main.steps,
        name=name,
        batch_size=plan.batch_size if full else plan.batch_size or main.batch_size,
        next_from=plan.next_from,
    )


def make_objective(plan: Plan, main: AbstractObjective) -> Any:
    """Makes the objective of a plan; a class is called with the main objective's solver, penalty, windows and loss."""
    if isinstance(plan.objective, AbstractObjective):
        return plan.objective
    maker, given = plan.objective, {}
    if isinstance(maker, functools.partial):
        maker, given = maker.func, maker.keywords
    if not isinstance(maker, type):
        return plan.objective
    accepted = inspect.signature(maker).parameters
    offered = {
        key: getattr(main, key)
        for key in ("solver", "penalty", "window", "stride", "residual_loss")
        if key not in given
    }
    if "horizon" in given:  # Windows do not grow.
        offered |= {"window": None, "stride": None}
    return plan.objective(**{key: value for key, value in offered.items() if key in accepted})


def windows_first(stage: Stage, facts: Facts) -> tuple[tuple[Stage, ...], list[str]]:
    """Splits a stage that uses windows into one on windows and, if that helps, one on whole trajectories."""
    objective = stage.objective.on_whole_trajectories()
    if objective is None:
        return (stage,), []
    windows = replace(stage, name="windows")
    if facts.driven:
        # Inputs make different trajectories converge, so a model accurate on windows stays accurate over a record;
        # on whole records, the validation loss only rose.
        return (windows,), []
    if facts.longest > LONGEST_WINDOW:
        return (windows,), [
            f"no stage on whole trajectories, since the longest has {facts.longest} rows, over {LONGEST_WINDOW}"
        ]
    # The whole trajectories can be fewer than a minibatch of windows.
    return (windows, replace(stage, objective=objective, batch_size=None)), []


def as_recipe(given: object) -> Recipe | tuple[Stage, ...]:
    """Converts a name to its recipe, and a list of stages to a tuple; returns a recipe unchanged.

    **Raises:** `ValueError` with the accepted values.
    """
    if isinstance(given, Recipe):
        return given
    if isinstance(given, str) and given in RECIPES:
        return RECIPES[given]
    if is_sequence(given) and not isinstance(given, str):
        stages = tuple(stage for stage in given if isinstance(stage, Stage))
        if len(stages) == len(given):
            return some(stages)
    raise ValueError(
        f"recipe must be {', '.join(RECIPES)}, a node_fit.Recipe or a list of node_fit.Stage, got {given!r:.60}."
    )


def some(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    if not stages:
        raise ValueError("recipe must hold at least one stage that applies to the data.")
    return stages


def is_default(recipe: Any) -> bool:
    """Whether a recipe equals the default one."""
    return is_same(recipe, DEFAULT_RECIPE)


def is_direct(recipe: Any) -> bool:
    """Whether a recipe equals the one without derivatives."""
    return is_same(recipe, DIRECT_RECIPE)


def is_same(recipe: Any, known: Recipe) -> bool:
    """Whether a recipe has the stages of a known one, whose objectives are plain classes."""
    if not isinstance(recipe, Recipe) or list(recipe.stages) != list(known.stages):
        return False
    pairs = zip(recipe.stages.values(), known.stages.values(), strict=True)
    return all(
        not isinstance(given.objective, AbstractObjective)
        and is_plain(given.objective)
        and maker_class(given.objective) is plain.objective
        and (given.steps, given.batch_size) == (plain.steps, plain.batch_size)
        and bool(eqx.tree_equal(given.optimizer, plain.optimizer))
        for given, plain in pairs
    )


def without_derivatives(recipe: Recipe | str | Sequence[Stage]) -> Recipe | str | Sequence[Stage]:
    """Drops the derivative stage of the default recipe; returns any other recipe unchanged.

    Used for identified equations, since noisy derivatives would move their constants away."""
    return DIRECT_RECIPE if is_default(recipe) else recipe
