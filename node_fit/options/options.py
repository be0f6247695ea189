"""The options of a fit."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np
import optax

from ..data.dataset import Dataset
from ..data.scaling import Scaling
from ..likelihood.losses import LEAST_SQUARES, LOSSES, AbstractLikelihood, as_loss
from ..model.fields.known import quantities
from ..model.fields.network import MLP
from ..model.make_model import (
    FIELDS,
    OBSERVATION_HINT,
    OBSERVATIONS,
    START_HINT,
    STARTS,
    MakeField,
    MakeObservation,
    MakeStart,
    as_field,
    key_of_seed,
)
from ..model.observation import MeasuredStates
from ..objectives.matching import TrajectoryMatching
from ..objectives.objective import Number, Penalty
from ..optimizers.gradient import LBFGS, OPTIMIZERS, Adam, as_optimizer
from ..optimizers.optimizer import AbstractOptimizer
from ..runtime.placement import Placement, Precision, ambient, find_device
from ..runtime.validation import FROM_DATA, by_name, check_fields, says_where
from ..solver.problem import VectorField
from ..solver.solver import Solver, as_solver
from ..training.task import Members, Stage, as_members
from .recipes import Recipe, as_recipe

# Tolerances for predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}
LOW_ORDER = ("euler", "heun", "bosh3")
MOST_STEPS = 16384
# Minimum number of trajectories per CPU device in a single fit; with fewer, another device does not pay off.
EACH = 64
# Number of simultaneous trajectories above which a GPU pays off. Below it, compilation costs more time than the GPU
# saves, and the adaptive steps of validation stall it.
PAYS_ON_GPU = 10_000

# How many alternatives a fit tries.
Effort = Literal["quick", "normal", "thorough"]


class Budget(NamedTuple):
    """The numbers of steps in the main stage and in a chunk, and the number of rows in a window."""

    steps: int
    chunk_steps: int
    window: int | None


@dataclass(frozen=True)
class Training:
    """How long a fit trains, and on which parts of the data.

    **Arguments:**

    - `steps`: maximum number of steps of the main stage; if None 2000, or 400 for long driven records.
    - `window`, `stride`: fit windows of `window` rows first, one every `stride` rows (half a window if None), then
      whole trajectories. `auto` uses windows for long driven records only.
    - `batch_size`: number of trajectories, or windows, sampled for each step; all of them if None.
    - `chunk_steps`: number of steps in a chunk; after each chunk the run validates, logs, saves and can stop. If None
      100, or 20 for long driven records.
    - `patience`: number of chunks without a better validation loss after which a stage stops.
    - `freeze`: names of model parts that are not trained, such as `field.network.layers.0`.

    **Raises:** `ValueError` if a number is out of range.
    """

    steps: int | None = None
    window: int | Literal["auto"] | None = "auto"
    stride: int | None = None
    batch_size: int | None = None
    chunk_steps: int | None = None
    patience: int = 10
    freeze: Sequence[str] = ()

    def __post_init__(self):
        check_fields(self)
        least = {"steps": 1, "window": 2, "stride": 1, "batch_size": 1, "chunk_steps": 1, "patience": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < bound:
                rows = " rows" if name == "window" else ""
                raise ValueError(f"{name} must be at least {bound}{rows}, got {value}.")

    @property
    def budget(self) -> Budget:
        """The numbers that `fit` can choose, after it has chosen them."""
        assert self.steps is not None and self.chunk_steps is not None and self.window != "auto"
        return Budget(self.steps, self.chunk_steps, self.window)


@dataclass(frozen=True)
class Devices:
    """The devices on which a run computes.

    **Arguments:**

    - `kind`: `cpu`, `gpu`, or `auto`, which uses an available GPU if many trajectories are solved at once.
    - `count`: number of devices over which members, or the trajectories of a single fit, are spread; all devices if
      None. The number used always divides the number of members or trajectories. `auto` uses all devices of a CPU for
      several members, one for every 64 trajectories of a single fit, and one on a GPU.
    """

    kind: str = "auto"
    count: int | Literal["auto"] | None = "auto"

    def __post_init__(self):
        check_fields(self)


# In x32, JAX reads the lower 32 bits of a seed, so a larger one would repeat a smaller one.
LARGEST_SEED = 2**32 - 1
# Hints for error messages about options whose type alone is unclear.
OPTIONS_PASS = {
    "hidden": "auto, a number of states or a list of their names",
    "start": f"auto, {START_HINT}",
    "observation": OBSERVATION_HINT,
    "scaling": "a node_fit.Scaling such as Scaling(log=['x'])",
    "loss": f"{', '.join(LOSSES)}, or one of node_fit's such as Huber(threshold=1.345)",
    "training": "a node_fit.Training such as Training(steps=500)",
    "precision": "x32 or x64",
    "device": "auto, cpu, gpu or a node_fit.Devices",
    "effort": "quick, normal or thorough",
    "derived": "a dict of names and expressions such as {'half_life': 'log(2)/k'}",
    "seed": f"an integer from 0 to {LARGEST_SEED}",
}


# Options of earlier versions and their current names.
RENAMED_OPTIONS = {"starts": "restarts", "evaluation": "prediction_solver"}


def place_of(name: str, words: Collection[str]) -> str | None:
    """Describes where to pass an option, or an argument of an option's class, that a call lacks; None if nowhere.

    **Arguments:** `words`: the options that the call accepts directly.
    """
    option, owner = RENAMED_OPTIONS.get(name, name), owner_of(name)
    if option in OPTION_NAMES:
        hint = "it is an option" if option == name else f"it is now called {option}"
        if option in words:
            return hint
        pattern = f"{option}=..."
    elif owner is not None:
        option, made = owner
        hint, pattern = f"it is an argument of {made}", f"{option}=node_fit.{made}({name}=...)"
    else:
        return None
    return f"{hint}: pass {pattern if option in words else f'options=node_fit.Options({pattern})'}"


def owner_of(name: str) -> tuple[str, str] | None:
    """Returns the option whose class accepts this argument from a user, and the class name; None if no class does."""
    groups = {"training": Training, "penalty": Penalty, "scaling": Scaling, "ensemble": Members, "solver": Solver}
    parts = {"field": FIELDS, "start": STARTS, "observation": OBSERVATIONS}
    owners = [*groups.items(), *(("optimizer", type(made)) for made in OPTIMIZERS.values())]
    owners += [(key, made) for key, known in parts.items() for made in known.values()]
    for key, made in owners:
        if name in inspect.signature(made).parameters and name not in FROM_DATA:
            return key, made.__name__
    return None


@says_where(lambda name: place_of(name, OPTION_NAMES))
@dataclass(frozen=True)
class Options:
    """All options of a fit except its data. `node_fit.fit` also accepts the most common ones directly.

    ```python
    options = node_fit.Options(loss="huber", restarts=8, seed=1)
    fit = node_fit.fit(train, field="linear", options=options)
    ```

    **Arguments:**

    - `field`: the right-hand side: an `equinox.Module` called with `(t, y, u)`, or a callable that makes one. The
      callable receives `(states, inputs, key=...)`, such as `MLP(width=32)`. If its first parameter is called `system`,
      it receives `(system, key=...)`, and the `System` holds names and scales, such as
      `Known(equations={"x": "-a*x"}, constants={"a": 1.0})`.
    - `hidden`: unmeasured states: their number, or their names.
    - `start`: the model of the initial state: `First`, `Fitted(given=5)`, `Encoder`, `Stated`, `Steady`.
    - `observation`: the measurement model: `MeasuredStates`, `LinearReadout`, `NetworkReadout(width=8)`,
      `FormulaReadout(formulas={"V": "ocv - R0*I - V1"}, constants={"ocv": 3.6, "R0": 0.05})`.
    - `scaling`: how states, inputs and time are scaled to order one, with logarithms and bounds, and which are angles.
    - `solver`: the solver for training: a `Solver`, the name of a method such as `kvaerno5` (`heun` on the command line
      is `Solver("heun", stepping="even", max_steps=16384)`), or a `diffrax.AbstractSolver`. `prediction_solver`: the
      solver for validation and prediction; if None, `solver` with tight tolerances and at least fifth order.
    - `recipe`: `default` begins with derivative matching, `direct` does not; or a `Recipe`, or a list of stages.
    - `optimizer`: the optimizer of the main stage; if None, `LBFGS()`, `Adam()` on minibatches, or
      `LevenbergMarquardt()` for equations without a network. It can be an Optax transformation.
    - `penalty`: penalties on the field and its weights; with `auto`, `fit` chooses the ridge.
    - `loss`: the likelihood: `Squares`, `Huber`, `StudentT` or `Laplace` for data with outliers, `Poisson` or
      `NegativeBinomial` for counts.
    - `training`: budget, windows, minibatches, patience.
    - `ensemble`: the number of members fitted simultaneously, or a `Members` that defines how they differ. `auto` is
      one, and draws bands around a good fit to few noisy rows, unless `effort` is `quick`.
    - `restarts`: the number of fits from different initial guesses; the best is kept, see `Fit.restarts`. The first
      fit begins at the given constants of equations. The others begin at the constants that simulate the data best
      among thousands sampled within a factor of a hundred of the given ones, or between two bounds. Networks begin with
      new weights. `auto` is 3 for short driven records with validation data, and 1 otherwise.
    - `derived`: named expressions of the constants, such as `{"half_life": "log(2)/k"}`; see `Fit.derived`.
    - `precision`: `x32` or `x64`; the process's mode if None.
    - `device`: `auto`, `cpu` or `gpu`, or `Devices`. `auto` uses an available GPU for 10,000 or more simultaneous
      trajectories, and otherwise the CPU, which is faster for fewer.
    - `seed`: the seed of initial parameters and minibatches.
    - `effort`: the alternatives to try if the first fit is poor or the data have few rows. `normal` tries equations of
      few terms, a polynomial, growing windows and a linear field, or several initial guesses for known equations;
      `thorough` tries more initial guesses; `quick` tries nothing. With a user-defined recipe, optimizer or `training`,
      and in `fit_several`, no alternatives are tried. See `Fit.attempts`.
    - `discover`: whether those alternatives include equations of few terms, or of motion, identified from the data.

    `field`, `start`, `observation`, `optimizer`, `loss` and `recipe` can be names, as on the command line: `mlp`,
    `linear`, `polynomial`, `second_order`, `log_time`, `sparse`, `mechanical`; `first`, `fitted`, `encoder`, `steady`;
    `measured`, `linear`, `network`, `formula`; `lbfgs`, `adam`, `adamw`, `lm`; `squares`, `huber`, `student`,
    `laplace`, `poisson`, `negative_binomial`; `default`, `direct`.

    **Raises:** `ValueError` with the accepted values, if an option has the wrong type or is out of range; `TypeError`
    for an unknown option, with the place where it belongs.
    """

    field: MakeField | VectorField | str = MLP
    hidden: int | Sequence[str] | Literal["auto"] = "auto"
    start: MakeStart | str = "auto"
    observation: MakeObservation | str = MeasuredStates
    scaling: Scaling = Scaling()
    solver: Any = "tsit5"
    prediction_solver: Solver | None = None
    recipe: Recipe | str | Sequence[Stage] = "default"
    optimizer: AbstractOptimizer | optax.GradientTransformation | str | None = None
    penalty: Penalty | Literal["auto"] = "auto"
    loss: AbstractLikelihood | str = LEAST_SQUARES
    training: Training = Training()
    ensemble: Members | int | Literal["auto"] = "auto"
    restarts: int | Literal["auto"] = "auto"
    derived: Mapping[str, str | float] | None = None
    precision: Precision | None = None
    device: Devices | str = Devices()
    seed: int = 0
    effort: Effort = "normal"
    discover: bool = True

    def __post_init__(self):
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("field", as_field(self.field))
        put("start", self.start if self.start == "auto" else by_name("start", self.start, {"auto": None, **STARTS}))
        put("observation", by_name("observation", self.observation, OBSERVATIONS))
        put("loss", as_loss(self.loss))
        put("solver", as_solver(self.solver))
        given = self.prediction_solver
        put("prediction_solver", None if given is None else as_solver(given, "prediction_solver"))
        put("optimizer", None if self.optimizer is None else as_optimizer(self.optimizer))
        put("ensemble", as_members(self.ensemble))
        put("penalty", as_penalty(self.penalty))
        put("device", Devices(self.device) if isinstance(self.device, str) else self.device)
        put("recipe", as_recipe(self.recipe))
        check_fields(self, OPTIONS_PASS)
        if isinstance(self.restarts, int) and self.restarts < 1:
            raise ValueError(f"restarts must be at least 1, got {self.restarts}.")
        _ = quantities(self.derived)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed must be {OPTIONS_PASS['seed']}, got {self.seed}.")

    @property
    def members(self) -> Members:
        """The members of the ensemble, and how they differ."""
        assert isinstance(self.ensemble, Members)
        return self.ensemble

    @property
    def kind(self) -> Precision:
        """The precision of these options, or of the process if it is not set."""
        return self.precision or ambient()

    @cached_property
    def place(self) -> Placement:
        """The placement of the arrays of a single fit."""
        return self.placement_for(1)

    def placement_for(self, members: int) -> Placement:
        """Returns the placement of the arrays of this many members."""
        assert isinstance(self.device, Devices)
        kind, count = self.device.kind, self.device.count
        if count != "auto":
            return Placement(self.kind, kind, count)
        if find_device(kind).platform != "cpu":
            return Placement(self.kind, kind)
        return Placement(self.kind, kind, None, fewest=1 if members > 1 else EACH)

    def for_data(self, train: Dataset, fits: int = 1) -> "Options":
        """Resolves `device=auto`: the CPU, unless enough trajectories are solved for a GPU to pay off.

        **Arguments:** `fits`: number of simultaneous fits.
        """
        assert isinstance(self.device, Devices)
        if self.device != Devices() or find_device("auto").platform == "cpu":
            return self
        restarts = self.restarts if isinstance(self.restarts, int) else 1
        if len(train.lengths) * max(fits, self.members.count, restarts) >= PAYS_ON_GPU:
            return self
        return replace(self, device=Devices("cpu"))

    @property
    def parts(self) -> dict[str, Any]:
        """The arguments of `make_model`, except the data."""
        return {
            "field": self.field,
            "hidden": self.hidden,
            "start": self.start,
            "observation": self.observation,
            "solver": self.prediction_solver or with_tolerance(self.solver, TIGHT[self.kind]),
            "scaling": self.scaling,
            "loss": self.loss,
            "key": key_of_seed(np.array(self.seed, np.uint32)),
        }

    def main_stage(self) -> Stage:
        """Returns the stage with these options' optimizer and budget, on whole trajectories or windows."""
        training, penalty, loss = self.training, self.penalty, self.loss
        assert isinstance(penalty, Penalty) and not isinstance(penalty.ridge, str)
        assert training.steps is not None and training.window != "auto" and not isinstance(loss, str)
        objective = TrajectoryMatching(penalty, self.solver, training.window, training.stride, residual_loss=loss)
        optimizer = self.optimizer or (LBFGS() if training.batch_size is None else Adam())
        return Stage(objective, optimizer, training.steps, "main", training.batch_size)

    def with_steps(self, steps: int) -> "Options":
        """Returns the same options with at most `steps` steps in the main stage."""
        return replace(self, training=replace(self.training, steps=min(self.training.steps or steps, steps)))

    def with_ridge(self, weight: Number) -> "Options":
        assert isinstance(self.penalty, Penalty)
        return replace(self, penalty=eqx.tree_at(lambda p: p.ridge, self.penalty, weight))


OPTION_NAMES: tuple[str, ...] = tuple(each.name for each in fields(Options))


def as_penalty(given: object) -> Penalty:
    """Converts to a `Penalty`; with `auto`, `fit` chooses its ridge.

    **Raises:** `ValueError` with the accepted values.
    """
    if isinstance(given, str) and given == "auto":
        return Penalty(ridge="auto")
    if not isinstance(given, Penalty):
        raise ValueError(f"penalty must be auto or a node_fit.Penalty such as Penalty(ridge=0.1), got {given!r:.60}.")
    return given


def with_tolerance(solver: Solver, rtol: float) -> Solver:
    """Returns an adaptive solver for predictions, with this `rtol` and an `atol` of a hundredth of it.

    Low orders and fixed steps are cheap in training but expensive at tight tolerances.
    """
    if solver.is_exponential:  # Its steps belong to the model.
        return solver
    method = "tsit5" if solver.method in LOW_ORDER else solver.method
    steps = max(solver.max_steps, MOST_STEPS)
    return replace(solver, method=method, rtol=rtol, atol=rtol / 100, stepping="adaptive", max_steps=steps)
