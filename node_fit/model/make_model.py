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
# What to pass for these.
START_HINT = f"{', '.join(STARTS)}, or one of node_fit's such as Fitted(given=5)"
OBSERVATION_HINT = f"{', '.join(OBSERVATIONS)}, or one of node_fit's such as NetworkReadout(width=8)"
# The most that a time is rounded by, as a share of the mean spacing of rows, where equations read it.
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
    """Makes a model that has not been trained yet.

    ```python
    model = node_fit.make_model(train, field=node_fit.MLP, key=jax.random.key(0))
    ```

    **Arguments:**

    - `train`: the data that give the scales and the numbers of states and inputs.
    - `solver`: the solver of predictions.
    - `loss`: the likelihood, whose noise may have constants.
    - `key`: a JAX random key for the initial parameters.
    - `field`, `hidden`, `start`, `observation`, `scaling`: as in `fit`.

    **Returns:** the model, with all arrays in the process's precision; or in double, if its equations read a time that
    single precision can't tell (`needs_double`).

    **Raises:** `ValueError` if an argument has the wrong type or does not fit the data.
    """
    check_data(train, "train")
    field = as_field(field)
    if ambient() == "x32" and needs_double(field, train):
        with scope("x64"):
            again = functools.partial(
                make_model, train, field=field, hidden=hidden, start=start, observation=observation
            )
            return again(solver=solver, scaling=scaling, loss=loss, key=key)
    start, observation = by_name("start", start, STARTS), by_name("observation", observation, OBSERVATIONS)
    assert not isinstance(field, str) and not isinstance(start, str) and not isinstance(observation, str)
    check_makers(hidden, start, observation, solver, scaling, key)
    is_drawn = asks_for_key(start) or asks_for_key(observation)
    start_key, observation_key = keys_beside_field(key) if is_drawn else (key, key)
    names = () if isinstance(hidden, int) else hidden
    scaling, numbered = scaling or Scaling(), names_of_local_trajectories(train, field, start, observation)
    train = with_trajectory_numbers(scaling.marked(train), numbered)
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
        readout=not says(observation, "is_direct", False),
        formulas=keyword(observation, "formulas"),
        angles=scaling.turns,
    )
    # If memory runs out, this raises here; later, it would end the process.
    made = jax.block_until_ready(make_field(field, system, key))
    precision_of(made)
    check_call(made, system)
    solver = solver or Solver()
    channels = make_observation(observation, system, train.states, made, observation_key)
    model = NeuralODE(
        field=made,
        start=start(system, Batch.from_dataset(train, scaler), key=start_key),
        observation=channels,
        scaler=scaler,
        solver=numbers_as_arrays(solver.for_data()),
        system=system,
        states=train.states,
        units=tuple(sorted(train.units.items())),
        noise=make_noise(scaler.marked(train), loss, system, values_of_constants((made, channels))),
    )
    check_agreement(model)
    return carry(model, dtype_of(ambient()))


@jax.jit
def key_of_seed(seed: AnyArray) -> PRNGKeyArray:
    """The random key of a model's first parameters, by one program: each operation apart takes a while to compile."""
    return jax.random.split(jax.random.key(seed))[0]


@jax.jit
def keys_beside_field(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Random keys of the start and of the observation, from that of the field."""
    start, observation = jax.random.split(jax.random.fold_in(key, 1))
    return start, observation


def asks_for_key(maker: Callable[..., object]) -> bool:
    """Whether what makes a part can't do without a random key; to split one that nobody reads is one more program."""
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
    """The scaler of the training data; `numbered` has the trajectories that have constants of their own."""
    counted = counted_channels(keyword(observation, "formulas"))
    identity = not scaling.affine
    return Scaler.from_dataset(train, bounds=limits, identity=identity, counted=counted, trajectories=numbered)


def names_of_local_trajectories(train: Dataset, *parts: object) -> tuple[str, ...]:
    """The names of trajectories that have constants of their own; none if no part has any."""
    local = [cast(Mapping[str, str], keyword(part, "local") or {}) for part in parts]
    return names_by_number(train) if any(BY_TRAJECTORY in each.values() for each in local) else ()


def with_groups(part: Part, train: Dataset) -> Part:
    """What makes a part, with the groups that its local constants have in the training data."""
    local = keyword(part, "local")
    if not local:
        return part
    return cast(Part, functools.partial(cast(Callable[..., object], part), groups=find_groups(train, local)))


def needs_double(field: object, train: Dataset) -> bool:
    """Whether equations read the time, and single precision rounds it by a share of the rows' mean spacing that shows.

    **Arguments:** `field`: a field, or what makes one.
    """
    gaps = np.diff(train.ts, axis=1)
    if not (gaps > 0).any():
        return False
    rounding = float(np.finfo(np.float32).eps) * float(np.abs(train.ts).max())
    return rounding > MOST_ROUNDING * float(gaps[gaps > 0].mean()) and normalize(train.time) in names_read(field)


def names_read(field: object) -> frozenset[str]:
    """The names in the equations and triggers of a field, or of what makes one; none if they are wrong."""
    given = field.known if isinstance(field, Hybrid) else field
    if isinstance(given, Known):
        parts = [given.equations, *(each for trigger in given.triggers for each in (trigger.level, trigger.jumps))]
        return frozenset(name for part in parts for name in part.names_used())
    try:
        texts: list[Mapping[Any, object]] = [as_mapping(keyword(field, "equations") or {})]
        for trigger in keyword(field, "triggers") or ():
            texts += [{WHEN: trigger[WHEN]}, trigger["set"]]
        return frozenset(name for text in texts if text for name in Equations.of(text).names_used())
    except (OSError, ValueError, TypeError, KeyError):  # Said where the field is made.
        return frozenset()


def values_of_constants(parts: PyTree) -> dict[str, float]:
    """The values of the constants in parts of a model, by their names; of a local one, that of its first group."""
    values: dict[str, float] = {}
    for group in constants_in(parts):
        own = group.as_dict()
        values |= own | {each.name: own[each.members[0]] for each in group.local}
    return values


def check_agreement(model: NeuralODE) -> None:
    """Refuses parts that do not go together."""
    check_constants(model)
    check_counts(model)


def check_constants(model: NeuralODE) -> None:
    """Refuses one name for constants of two parts."""
    homes: dict[str, str] = {}
    for kind, part in (("field", model.field), ("start", model.start), ("observation", model.observation)):
        for name in sorted(name for group in constants_in(part) for name in group.symbols):
            if name in homes:
                both = f"of the {homes[name]} and of the {kind}"
                raise ValueError(f"{name!r} is a constant {both}, which are not the same; rename one.")
            homes[name] = kind


def check_counts(model: NeuralODE) -> None:
    """Refuses counts between rows behind a start that is read from several rows: the states there are after them."""
    if model.counts and isinstance(model.start, Encoder):
        raise ValueError(
            "increase(...) counts from a trajectory's first row on, of which start=encoder has no simulation; use "
            "start=first, fitted, stated or steady."
        )


def make_field(field: MakeField | VectorField, system: System, key: PRNGKeyArray) -> VectorField:
    """The field itself, or the result of a function that makes one; its parameter names decide how it is called."""
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    maker = cast(MakeField, field)
    parameters = inspect.signature(made_of(maker)).parameters
    if "system" in parameters:
        return maker(system, key=key)
    angles = {"angles": system.scaler} if any(system.scaler.turns) and "angles" in parameters else {}
    return maker(len(system.states), len(system.inputs), **angles, key=key)


def make_observation(
    observation: MakeObservation, system: System, channels: Sequence[str], field: VectorField, key: PRNGKeyArray
) -> Observation:
    """The observation; one of formulas gets the names of the channels and of the field's constants."""
    if "channels" not in inspect.signature(made_of(observation)).parameters:
        return observation(system, key=key)
    known = [name for group in constants_in(field) for name in group.symbols]
    return observation(system, channels=channels, known=known, key=key)


def check_call(field: VectorField, system: System) -> None:
    """Refuses a field that can't be called with time, states and inputs, or does not return a rate for each state.

    **Raises:** `ValueError` that says what it gets, and what it must return.
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
        said = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(f"{what} fails when it is called with {gets}; the states are {names}: {said}.") from error
    shape, dtype = getattr(rates, "shape", None), getattr(rates, "dtype", None)
    if shape != (states,) or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        found = f"a {type(rates).__name__}" if shape is None else f"shape {shape} of {dtype}"
        raise ValueError(
            f"{what} must return the time derivatives of {names}, a floating array of shape ({states},), but it "
            f"returns {found}."
        )


def as_field(field: "MakeField | VectorField | str") -> "MakeField | VectorField":
    """A field or what makes one, by its name or as it is.

    **Raises:** `ValueError` that says what to pass, if it is neither a field nor makes one.
    """
    field = by_name("field", field, FIELDS)
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    if not callable(field):
        raise ValueError(f"field must be a vector field or make one, got {field!r:.60}; pass field=node_fit.MLP.")
    parameters = inspect.signature(made_of(field)).parameters
    if "key" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(
            f"field must be an equinox.Module that is called with (t, y, u), or a function that makes one when it is "
            f"called with (states, inputs, key=...), but {field!r:.60} takes no key; write it as an equinox.Module "
            "whose arrays are what is trained."
        )
    return field


def made_of(maker: object) -> Callable[..., object]:
    """The class or function behind partials."""
    return made_of(maker.func) if isinstance(maker, functools.partial) else cast(Callable[..., object], maker)


def says(maker: Any, name: str, default: Any) -> Any:
    """What the class of a part says of its instances before there is one; the default of a function or an instance."""
    found = made_of(maker) if callable(maker) else None
    return getattr(found, name, default) if isinstance(found, type) else default


def is_equations_alone(field: Any) -> bool:
    """Whether a field, or what makes one, has right-hand sides as equations and no network beside them."""
    kind = type(field) if isinstance(field, eqx.Module) else made_of(field) if callable(field) else None
    return bool(getattr(kind, "has_equations", False)) and not getattr(kind, "has_network", True)


def keywords(maker: Any) -> dict[str, Any]:
    """The keyword arguments of a partial; none of a class or function."""
    return maker.keywords if isinstance(maker, functools.partial) else {}


def keyword(maker: Any, name: str) -> Any:
    """The keyword argument of a partial by this name; None if it has none."""
    return keywords(maker).get(name)


def is_plain(maker: Any) -> bool:
    """Whether a class or function is called without arguments other than its defaults."""
    if not isinstance(maker, functools.partial):
        return True
    defaults = {name: each.default for name, each in inspect.signature(maker.func).parameters.items()}
    return not maker.args and all(defaults.get(name) == value for name, value in maker.keywords.items())
