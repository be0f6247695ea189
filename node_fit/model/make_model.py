"""Makes a model with its initial parameters from data and options."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset, check_data
from ..data.domains import Bounds
from ..data.groups import BY_TRAJECTORY, find_groups, names_by_number, with_trajectory_numbers
from ..data.scaling import Scaler, Scaling
from ..likelihood.losses import LEAST_SQUARES, AbstractLikelihood
from ..runtime.placement import AnyArray, ambient, carry, dtype_of, numbers_as_arrays, precision_of, scope
from ..runtime.validation import by_name, check_argument
from ..solver.problem import VectorField
from ..solver.solver import Solver
from .fields.equations import Equations, as_mapping, normalize
from .fields.known import WHEN, Hybrid, Known, Mechanical, Sparse, constants_in
from .fields.network import MLP, Linear, LogTimeMLP, Polynomial, SecondOrder
from .initial_state.rule import AbstractStart, First, Stated, Steady
from .initial_state.trained import Encoder, Fitted
from .neural_ode import NeuralODE
from .noise import make_noise
from .observation import (
    DirectReadout,
    FormulaReadout,
    LinearReadout,
    MeasuredStates,
    NetworkReadout,
    Observation,
    counted_channels,
)
from .system import System

Part = TypeVar("Part")
MakeField = Callable[..., VectorField]
MakeStart = Callable[..., AbstractStart]
MakeObservation = Callable[..., Observation]
# Parts of a model by their names on the command line.
FIELDS = {
    "mlp": MLP,
    "linear": Linear,
    "polynomial": Polynomial,
    "known": Known,
    "hybrid": Hybrid,
    "sparse": Sparse,
    "mechanical": Mechanical,
    "second_order": SecondOrder,
    "log_time": LogTimeMLP,
}
STARTS = {"first": First, "fitted": Fitted, "encoder": Encoder, "stated": Stated, "steady": Steady}
OBSERVATIONS = {
    "measured": MeasuredStates,
    "linear": LinearReadout,
    "direct": DirectReadout,
    "network": NetworkReadout,
    "formula": FormulaReadout,
}
# Valid choices, for error messages.
START_HINT = f"{', '.join(STARTS)}, or one of node_fit's such as Fitted(given=5)"
OBSERVATION_HINT = f"{', '.join(OBSERVATIONS)}, or one of node_fit's such as NetworkReadout(width=8)"
# Maximum rounding error of the time, as a share of the mean spacing of rows, if equations use the time.
MOST_ROUNDING = 1e-3


def make_model(
    train: Dataset,
    *,
    field: MakeField | VectorField | str = MLP,
    hidden: int | Sequence[str] = 0,
    start: MakeStart | str = First,
    observation: MakeObservation | str = MeasuredStates,
    solver: Solver | None = None,
    scaling: Scaling | None = None,
    loss: AbstractLikelihood = LEAST_SQUARES,
    key: PRNGKeyArray,
) -> NeuralODE:
    """Makes an untrained model.

    ```python
    model = node_fit.make_model(train, field=node_fit.MLP, key=jax.random.key(0))
    ```

    **Arguments:**

    - `train`: the data that determine the scales and the numbers of states and inputs.
    - `solver`: the solver for predictions.
    - `loss`: the likelihood, whose noise can have constants.
    - `key`: a JAX random key for the initial parameters.
    - `field`, `hidden`, `start`, `observation`, `scaling`: as in `fit`.

    **Returns:** the model, with all arrays in the process's precision; or in double, if its equations use a time that
    single precision can't resolve (`needs_double`).

    **Raises:** `ValueError` if an argument has the wrong type or does not fit the data.
    """
    check_data(train, "train")
    field = as_field(field)
    if ambient() == "x32" and needs_double(field, train):
        with scope("x64"):
            remake = functools.partial(
                make_model, train, field=field, hidden=hidden, start=start, observation=observation
            )
            return remake(solver=solver, scaling=scaling, loss=loss, key=key)
    start, observation = by_name("start", start, STARTS), by_name("observation", observation, OBSERVATIONS)
    assert not isinstance(field, str) and not isinstance(start, str) and not isinstance(observation, str)
    check_makers(hidden, start, observation, solver, scaling, key)
    is_drawn = asks_for_key(start) or asks_for_key(observation)
    start_key, observation_key = keys_beside_field(key) if is_drawn else (key, key)
    names = () if isinstance(hidden, int) else hidden
    scaling, numbered = scaling or Scaling(), names_of_local_trajectories(train, field, start, observation)
    train = with_trajectory_numbers(scaling.mark_angles(train), numbered)
    field, start, observation = with_groups(field, train), with_groups(start, train), with_groups(observation, train)
    limits = scaling.limits((*train.states, *names), train.inputs)
    scaler = make_scaler(train, scaling, limits, observation, numbered)
    system = System.from_names(
        scaler,
        train.states,
        hidden,
        limits,
        inputs=train.inputs,
        time=train.time,
        readout=not trait_of(observation, "is_direct", False),
        formulas=keyword(observation, "formulas"),
        angles=scaling.turns,
    )
    # If memory runs out, this raises here; later, it would end the process.
    vector_field = jax.block_until_ready(make_field(field, system, key))
    precision_of(vector_field)
    check_call(vector_field, system)
    solver = solver or Solver()
    channels = make_observation(observation, system, train.states, vector_field, observation_key)
    model = NeuralODE(
        field=vector_field,
        start=start(system, Batch.from_dataset(train, scaler), key=start_key),
        observation=channels,
        scaler=scaler,
        solver=numbers_as_arrays(solver.for_data()),
        system=system,
        states=train.states,
        units=tuple(sorted(train.units.items())),
        noise=make_noise(scaler.mark_angles(train), loss, system, values_of_constants((vector_field, channels))),
    )
    check_agreement(model)
    return carry(model, dtype_of(ambient()))


@jax.jit
def key_of_seed(seed: AnyArray) -> PRNGKeyArray:
    """Returns the random key of a model's initial parameters, in one program to save compilation time."""
    return jax.random.split(jax.random.key(seed))[0]


@jax.jit
def keys_beside_field(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Returns random keys for the start and the observation, derived from the key of the field."""
    start, observation = jax.random.split(jax.random.fold_in(key, 1))
    return start, observation


def asks_for_key(maker: Callable[..., object]) -> bool:
    """Whether the maker of a part requires a random key; splitting an unused key would compile one more program."""
    key = inspect.signature(maker).parameters.get("key")
    return key is None or key.default is inspect.Parameter.empty


def check_makers(
    hidden: object, start: object, observation: object, solver: object, scaling: object, key: object
) -> None:
    for name, value, hint, text in (
        ("hidden", hidden, int | Sequence[str], "a number of states or a list of their names"),
        ("start", start, MakeStart, START_HINT),
        ("observation", observation, MakeObservation, OBSERVATION_HINT),
        ("solver", solver, Solver | None, None),
        ("scaling", scaling, Scaling | None, None),
        ("key", key, PRNGKeyArray, "a JAX random key such as jax.random.key(0)"),
    ):
        check_argument(name, value, hint, text)


def make_scaler(
    train: Dataset, scaling: Scaling, limits: Mapping[str, Bounds], observation: object, numbered: Sequence[str]
) -> Scaler:
    """Makes the scaler of the training data; `numbered` lists the trajectories with their own constants."""
    counted = counted_channels(keyword(observation, "formulas"))
    identity = not scaling.affine
    return Scaler.from_dataset(train, bounds=limits, identity=identity, counted=counted, trajectories=numbered)


def names_of_local_trajectories(train: Dataset, *parts: object) -> tuple[str, ...]:
    """Returns the names of trajectories if any constant is local by trajectory; none otherwise."""
    local = [cast(Mapping[str, str], keyword(part, "local") or {}) for part in parts]
    return names_by_number(train) if any(BY_TRAJECTORY in covariates.values() for covariates in local) else ()


def with_groups(part: Part, train: Dataset) -> Part:
    """Binds the groups of local constants in the training data to the maker of a part."""
    local = keyword(part, "local")
    if not local:
        return part
    return cast(Part, functools.partial(cast(Callable[..., object], part), groups=find_groups(train, local)))


def needs_double(field: object, train: Dataset) -> bool:
    """Whether equations use the time, and single precision rounds it noticeably relative to the rows' mean spacing.

    **Arguments:** `field`: a field, or its maker.
    """
    gaps = np.diff(train.ts, axis=1)
    if not (gaps > 0).any():
        return False
    rounding = float(np.finfo(np.float32).eps) * float(np.abs(train.ts).max())
    return rounding > MOST_ROUNDING * float(gaps[gaps > 0].mean()) and normalize(train.time) in names_read(field)


def names_read(field: object) -> frozenset[str]:
    """Returns the names in the equations and triggers of a field or its maker; none if they are invalid."""
    unwrapped = field.known if isinstance(field, Hybrid) else field
    if isinstance(unwrapped, Known):
        parts = [
            unwrapped.equations,
            *(equations for trigger in unwrapped.triggers for equations in (trigger.level, trigger.jumps)),
        ]
        return frozenset(name for part in parts for name in part.names_used())
    try:
        texts: list[Mapping[Any, object]] = [as_mapping(keyword(field, "equations") or {})]
        for trigger in keyword(field, "triggers") or ():
            texts += [{WHEN: trigger[WHEN]}, trigger["set"]]
        return frozenset(name for text in texts if text for name in Equations.of(text).names_used())
    except (OSError, ValueError, TypeError, KeyError):  # Reported when the field is made.
        return frozenset()


def values_of_constants(parts: PyTree) -> dict[str, float]:
    """Returns the constants in parts of a model by name; for local constants, the value of the first group."""
    values: dict[str, float] = {}
    for group in constants_in(parts):
        constants = group.as_dict()
        values |= constants | {constant.name: constants[constant.members[0]] for constant in group.local}
    return values


def check_agreement(model: NeuralODE) -> None:
    """Raises an error if parts of the model are incompatible."""
    check_constants(model)
    check_counts(model)


def check_constants(model: NeuralODE) -> None:
    """Raises an error if constants of two parts have the same name."""
    homes: dict[str, str] = {}
    for kind, part in (("field", model.field), ("start", model.start), ("observation", model.observation)):
        for name in sorted(name for group in constants_in(part) for name in group.symbols):
            if name in homes:
                both = f"of the {homes[name]} and of the {kind}"
                raise ValueError(f"{name!r} is a constant {both}, which are not the same; rename one.")
            homes[name] = kind


def check_counts(model: NeuralODE) -> None:
    """Raises an error if counts between rows are combined with an encoder, whose initial state is after these rows."""
    if model.counts and isinstance(model.start, Encoder):
        raise ValueError(
            "increase(...) counts from a trajectory's first row on, which start=encoder does not simulate; use "
            "start=first, fitted, stated or steady."
        )


def make_field(field: MakeField | VectorField, system: System, key: PRNGKeyArray) -> VectorField:
    """Returns the field itself, or calls the function that makes it according to its parameter names."""
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    maker = cast(MakeField, field)
    parameters = inspect.signature(maker_class(maker)).parameters
    if "system" in parameters:
        return maker(system, key=key)
    angles = {"angles": system.scaler} if any(system.scaler.turns) and "angles" in parameters else {}
    return maker(len(system.states), len(system.inputs), **angles, key=key)


def make_observation(
    observation: MakeObservation, system: System, channels: Sequence[str], field: VectorField, key: PRNGKeyArray
) -> Observation:
    """Makes the observation; one with formulas gets the names of the channels and of the field's constants."""
    if "channels" not in inspect.signature(maker_class(observation)).parameters:
        return observation(system, key=key)
    known = [name for group in constants_in(field) for name in group.symbols]
    return observation(system, channels=channels, known=known, key=key)


def check_call(field: VectorField, system: System) -> None:
    """Checks that a field can be called with time, states and inputs, and returns a rate for each state.

    **Raises:** `ValueError` with the arguments it gets and the result it must return.
    """
    states, inputs = len(system.states), len(system.inputs)
    what, names = f"field {type(field).__name__}", ", ".join(system.states)
    gets = f"(t, y, u), of shapes (), ({states},) and ({inputs},)"
    try:
        inspect.signature(field).bind(0, 0, 0)
    except TypeError as error:
        raise ValueError(f"{what} must be called with {gets}, but its __call__ has other arguments: {error}.") from None
    try:
        rates = eqx.filter_eval_shape(field, jnp.zeros(()), jnp.zeros(states), jnp.zeros(inputs))
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(f"{what} fails when it is called with {gets}; the states are {names}: {reason}.") from error
    shape, dtype = getattr(rates, "shape", None), getattr(rates, "dtype", None)
    if shape != (states,) or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        actual = f"a {type(rates).__name__}" if shape is None else f"shape {shape} of {dtype}"
        raise ValueError(
            f"{what} must return the time derivatives of {names}, a floating array of shape ({states},), but it "
            f"returns {actual}."
        )


def as_field(field: "MakeField | VectorField | str") -> "MakeField | VectorField":
    """Returns a field or its maker, looked up if it is a name.

    **Raises:** `ValueError` if it is neither a field nor a maker of one.
    """
    field = by_name("field", field, FIELDS)
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    if not callable(field):
        raise ValueError(f"field must be a vector field or make one, got {field!r:.60}; pass field=node_fit.MLP.")
    parameters = inspect.signature(maker_class(field)).parameters
    if "key" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(
            f"field must be an equinox.Module that is called with (t, y, u), or a function that makes one when it is "
            f"called with (states, inputs, key=...), but {field!r:.60} takes no key; write it as an equinox.Module "
            "whose arrays are what is trained."
        )
    return field


def maker_class(maker: object) -> Callable[..., object]:
    """Returns the class or function behind partials."""
    return maker_class(maker.func) if isinstance(maker, functools.partial) else cast(Callable[..., object], maker)


def trait_of(maker: Any, name: str, default: Any) -> Any:
    """Returns a class attribute of a part that has not been made yet; the default for a function or an instance."""
    kind = maker_class(maker) if callable(maker) else None
    return getattr(kind, name, default) if isinstance(kind, type) else default


def is_equations_alone(field: Any) -> bool:
    """Whether the right-hand sides of a field or its maker are equations without a network."""
    kind = type(field) if isinstance(field, eqx.Module) else maker_class(field) if callable(field) else None
    return bool(getattr(kind, "has_equations", False)) and not getattr(kind, "has_network", True)


def keywords(maker: Any) -> dict[str, Any]:
    """Returns the keyword arguments of a partial; none for a class or function."""
    return maker.keywords if isinstance(maker, functools.partial) else {}


def keyword(maker: Any, name: str) -> Any:
    """Returns the keyword argument of a partial by this name; None if absent."""
    return keywords(maker).get(name)


def is_plain(maker: Any) -> bool:
    """Whether a class or function is only called with its default arguments."""
    if not isinstance(maker, functools.partial):
        return True
    defaults = {name: parameter.default for name, parameter in inspect.signature(maker.func).parameters.items()}
    return not maker.args and all(defaults.get(name) == value for name, value in maker.keywords.items())
