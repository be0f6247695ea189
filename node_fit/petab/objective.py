"""The log-likelihood of a PEtab problem under its noise and priors, with gradient and Fisher information."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from ..expressions.evaluation import as_float, evaluate, stack_scalars
from ..expressions.operations import Value
from ..expressions.tree import Expression, symbols
from ..minimize.compiled import DampedSearch, search_damped
from ..minimize.host import Damping
from ..runtime.compilation import WITHOUT_FUSION_EMITTERS
from .adjoint import run_reversibly
from .densities import Noise, from_scale, log_priors, to_scale
from .simulation import DEFAULT_TOLERANCES, Period, Simulation, Tolerances, first_memory
from .system import Change, Constants, ReactionSystem, Scope, StartScope
from .tables import PEtabError, Problem, observation_parameters


class Kind(NamedTuple):
    """The common structure of experiments that are simulated together.

    - `before_equilibrium`: for each condition, whether the state reaches an equilibrium under it.
    - `formulas`: for each condition, new values that depend on the state.
    - `ends_steady`: whether the state is measured at an infinite time.
    """

    before_equilibrium: tuple[bool, ...]
    formulas: tuple[tuple[tuple[str, Expression], ...], ...]
    ends_steady: bool


class Block(NamedTuple):
    """Measurements of one observable in experiments of one kind.

    - `places`: indices of the measurements in the problem. `experiment`, `row`: indices of their states.
    - `overrides`: for each placeholder, the index of the override that replaces it.
    """

    observable: str
    places: Int[np.ndarray, " measurement"]
    experiment: Int[np.ndarray, " measurement"]
    row: Int[np.ndarray, " measurement"]
    time: Float[np.ndarray, " measurement"]
    overrides: Mapping[str, Int[np.ndarray, " measurement"]]
    noise: Noise


@dataclass(frozen=True)
class Group:
    """Experiments that one program simulates.

    - `begins`: start time of each condition. `stops`: times at which states are recorded; infinite ones are padding.
    - `targets`: names that each condition sets from parameters alone. `given`: mask of the experiments that set them.
    - `values`: the formulas of these values.
    """

    kind: Kind
    begins: Float[np.ndarray, "experiment condition"]
    stops: tuple[Float[np.ndarray, "experiment _"], ...]
    targets: tuple[tuple[str, ...], ...]
    given: tuple[np.ndarray, ...]
    values: tuple[tuple[tuple[Expression | None, ...], ...], ...]
    blocks: tuple[Block, ...]

    def changed_values(self, parameters: Mapping[str, Value]) -> tuple[Float[Array, "experiment _"], ...]:
        """Returns the new values under each condition."""
        return tuple(
            jnp.stack([
                stack_scalars([0.0 if formula is None else evaluate(formula, parameters) for formula in row])
                for row in rows
            ])
            for rows in self.values
        )  # fmt: skip


def is_of_parameters(formula: Expression, problem: Problem, targets: frozenset[str]) -> bool:
    """Whether a value depends on parameters of the table alone, and not on the state."""
    return all(name in problem.parameters and name not in targets for name in symbols(formula))


class Planner:
    """Sorts a problem's experiments and measurements into groups that are simulated together."""

    def __init__(self, problem: Problem):
        self.problem = problem
        changed = (period.changes for periods in problem.experiments.values() for period in periods)
        self.targets = tuple(dict.fromkeys(name for changes in changed for name in changes))
        used = (f for row in problem.measurements for f in (*row.overrides, *row.noise_overrides))
        self.overrides = {formula: at for at, formula in enumerate(dict.fromkeys(used))}

    def kind(self, name: str) -> Kind:
        periods = self.problem.experiments[name]
        formulas = tuple(
            tuple(
                (target, formula)
                for target, formula in period.changes.items()
                if not is_of_parameters(formula, self.problem, frozenset(self.targets))
            )
            for period in periods
        )
        steady = any(
            measurement.time == np.inf and measurement.experiment == name for measurement in self.problem.measurements
        )
        return Kind(tuple(period.time == -np.inf for period in periods), formulas, steady)

    def groups(self) -> tuple[Group, ...]:
        kinds: dict[Kind, list[str]] = {}
        for name in self.problem.experiments:
            kinds.setdefault(self.kind(name), []).append(name)
        return tuple(self.group(kind, names) for kind, names in kinds.items())

    def group(self, kind: Kind, names: Sequence[str]) -> Group:
        experiments = [self.problem.experiments[name] for name in names]
        count = len(kind.before_equilibrium)
        begins = np.array([[0.0 if p.time == -np.inf else p.time for p in periods] for periods in experiments])
        rows = [self.rows(name) for name in names]
        stops: list[np.ndarray] = []
        for at in range(count):
            length = max(len(row[at]) for row in rows)
            padded = [[*row[at], *[np.inf] * (length - len(row[at]))] for row in rows]
            stops.append(np.array(padded).reshape(len(names), length))
        values: list[tuple[tuple[Expression | None, ...], ...]] = []
        targets: list[tuple[str, ...]] = []
        is_set: list[np.ndarray] = []
        for at in range(count):
            inside = dict(kind.formulas[at])
            changed_names = dict.fromkeys(
                name for periods in experiments for name in periods[at].changes if name not in inside
            )
            targets.append(tuple(changed_names))
            is_set.append(
                np.array([[name in periods[at].changes for name in changed_names] for periods in experiments], bool)
            )
            values.append(
                tuple(tuple(periods[at].changes.get(name) for name in changed_names) for periods in experiments)
            )
        blocks = self.blocks(names, rows, [stop.shape[1] for stop in stops])
        return Group(kind, begins, tuple(stops), tuple(targets), tuple(is_set), tuple(values), blocks)

    def rows(self, name: str) -> list[list[float]]:
        """Returns the times at which states are recorded under each condition of an experiment."""
        periods = self.problem.experiments[name]
        times = sorted(
            {measurement.time for measurement in self.problem.measurements if measurement.experiment == name}
        )
        begins = [period.time for period in periods]
        first = next(time for time in begins if time != -np.inf)
        if times[0] < first:
            raise PEtabError(f"{self.problem.path.name}: {name!r} begins at {first:g} and is measured at {times[0]:g}.")
        ends = [*begins[1:], np.inf]
        return [
            [] if begin == -np.inf else [time for time in times if begin <= time < end]
            for begin, end in zip(begins, ends, strict=True)
        ]

    def blocks(self, names: Sequence[str], rows: list[list[list[float]]], lengths: list[int]) -> tuple[Block, ...]:
        offsets = np.cumsum([0, *lengths])
        places: dict[str, list[tuple[int, int, int]]] = {}
        for at, measurement in enumerate(self.problem.measurements):
            if measurement.experiment not in names:
                continue
            experiment = names.index(measurement.experiment)
            if measurement.time == np.inf:
                row = int(offsets[-1])
            else:
                period = next(k for k, times in enumerate(rows[experiment]) if measurement.time in times)
                row = int(offsets[period]) + rows[experiment][period].index(measurement.time)
            places.setdefault(measurement.observable, []).append((at, experiment, row))
        return tuple(self.block(name, np.array(block_places)) for name, block_places in places.items())

    def block(self, name: str, found: Int[np.ndarray, "measurement 3"]) -> Block:
        observable = self.problem.observables[name]
        measurements = [self.problem.measurements[at] for at in map(int, found[:, 0])]
        measured = np.array([measurement.value for measurement in measurements])
        if not np.all(np.isfinite(measured)) or (observable.scale != "lin" and np.any(measured <= 0)):
            rule = "finite" if observable.scale == "lin" else "positive where their noise is on a logarithmic scale"
            raise PEtabError(
                f"{self.problem.path.name}: measurements of {name!r} must be {rule}, got {measured.min():g}."
            )
        indices = {
            placeholder: np.array([self.overrides[measurement.overrides[k]] for measurement in measurements])
            for k, placeholder in enumerate(observable.placeholders)
        } | {
            placeholder: np.array([self.overrides[measurement.noise_overrides[k]] for measurement in measurements])
            for k, placeholder in enumerate(observable.noise_placeholders)
        }
        times = np.array([measurement.time for measurement in measurements])
        with jax.enable_x64(True):
            noise = Noise(observable.loss, observable.scale, jnp.asarray(measured))
        return Block(name, found[:, 0], found[:, 1], found[:, 2], times, indices, noise)


class Outputs(NamedTuple):
    """Simulated values on the scale of the noise, and the logarithms of sigma, in the order of the blocks."""

    simulated: Float[Array, " measurement"]
    log_sigma: Float[Array, " measurement"]


# Recorded states and constants of the experiments, by group.
Recorded = tuple[tuple[Float[Array, "experiment row state"], Constants], ...]


class Evaluation(NamedTuple):
    """The log-likelihood with the outputs and recorded states it was computed from."""

    value: Float[Array, ""]
    outputs: Outputs
    recorded: Recorded


class Derivatives(NamedTuple):
    """The log-likelihood with gradient and Fisher information, the outputs and their derivatives."""

    value: Float[Array, ""]
    gradient: Float[Array, " parameter"]
    fisher: Float[Array, "parameter parameter"]
    outputs: Outputs
    slopes: Outputs


# Number of parameters below which forward sensitivities are as fast.
MIN_PARAMETERS_OF_SWEEP = 6
# Number of evaluations to fit scales, offsets and noise at a point, the longest step, and the initial damping.
SCREENING_EVALUATIONS, LONGEST_SCREENING_STEP, SCREENING_DAMPING = 41, 1.0, Damping(1e-2, 0.2, 8.0, maximum=1e10)


class Objective:
    """The log-likelihood of a PEtab problem.

    Points are vectors of the estimated parameters, on their scales, in the order of `names`. All computations use
    double precision.

    **Arguments:**

    - `problem`: from `read_petab`.
    - `tolerances`: tolerances of the simulation.
    """

    def __init__(self, problem: Problem, tolerances: Tolerances = DEFAULT_TOLERANCES):
        self.problem, self.tolerances = problem, tolerances
        planner = Planner(problem)
        self.estimated = [parameter for parameter in problem.parameters.values() if parameter.is_estimated]
        self.names = tuple(parameter.name for parameter in self.estimated)
        self.groups = planner.groups()
        self.system = ReactionSystem(problem.model, planner.targets)
        self.overrides = tuple(planner.overrides)
        self.blocks = [block for group in self.groups for block in group.blocks]
        self.order = np.concatenate([block.places for block in self.blocks])
        self.check_values()
        self._differentiable = jax.custom_vjp(self._value)
        self._differentiable.defvjp(self._value_and_gradient, lambda gradient, weight: (gradient * weight,))

    def check_values(self) -> None:
        """Refuses a problem in which a quantity has no initial value."""
        always = {name for group in self.groups for name, is_given in group_targets(group).items() if is_given}
        lacking = [
            name
            for name in self.problem.model.without_value()
            if name not in self.problem.parameters and name not in always
        ]
        if lacking:
            raise PEtabError(
                f"{self.problem.path.name}: {lacking[0]!r} has a value neither in the model nor in the tables."
            )

    # Points

    @cached_property
    def nominal(self) -> Float[np.ndarray, " parameter"]:
        """The stored values of the estimated parameters, on their scales; NaN if none is stored."""
        return self.on_scale([parameter.nominal for parameter in self.estimated])

    @cached_property
    def bounds(self) -> tuple[Float[np.ndarray, " parameter"], Float[np.ndarray, " parameter"]]:
        """Lower and upper bounds on the scales."""
        lower = self.on_scale([parameter.lower for parameter in self.estimated])
        return lower, self.on_scale([parameter.upper for parameter in self.estimated])

    def on_scale(self, values: Sequence[float]) -> Float[np.ndarray, " parameter"]:
        """Transforms values of the estimated parameters to their scales."""
        with jax.enable_x64(True):
            pairs = zip(values, self.estimated, strict=True)
            return np.array([float(to_scale(value, parameter.scale)) for value, parameter in pairs])

    def values(self, x: ArrayLike) -> dict[str, float]:
        """Returns the value of each parameter at a point, including fixed ones."""
        with jax.enable_x64(True):
            return {name: float(value) for name, value in self._parameters(self._check(x)).items()}

    def _check(self, x: ArrayLike) -> Float[Array, " parameter"]:
        point = jnp.asarray(x, float)
        if point.shape != (len(self.names),):
            raise ValueError(f"x must have the shape ({len(self.names)},), one value for each name; got {point.shape}.")
        return point

    def _parameters(self, x: Float[Array, " parameter"]) -> dict[str, Value]:
        fixed: dict[str, Value] = {
            name: parameter.nominal for name, parameter in self.problem.parameters.items() if not parameter.is_estimated
        }
        return fixed | {
            parameter.name: from_scale(x[at], parameter.scale) for at, parameter in enumerate(self.estimated)
        }

    # Simulation

    def _simulate(
        self, group: Group, parameters: Mapping[str, Value], reversibly: bool
    ) -> tuple[Float[Array, "experiment row state"], Constants]:
        """Returns the recorded states and the constants of all experiments of a group."""
        run = partial(self._run, group, parameters, reversibly)
        changed = group.changed_values(parameters)
        stops = tuple(jnp.asarray(array) for array in group.stops)
        is_set = tuple(jnp.asarray(array) for array in group.given)
        return jax.vmap(run)(jnp.asarray(group.begins), stops, is_set, changed)

    def _run(
        self,
        group: Group,
        parameters: Mapping[str, Value],
        reversibly: bool,
        begins: Float[Array, " condition"],
        stops: tuple[Float[Array, "_"], ...],
        given: tuple[Array, ...],
        values: tuple[Array, ...],
    ) -> tuple[Float[Array, "row state"], Constants]:
        """Simulates one experiment."""
        system, kind = self.system, group.kind
        formulas = {**system.model.initial, **system.model.rules, **system.model.reactions}
        plain = StartScope({"time": begins[0], **parameters}, formulas, {})

        def changes_of(at: int, scope: Mapping[str, Value]) -> dict[str, Change]:
            named = {
                name: Change(bool(group.given[at][:, k].all()) or given[at][k], values[at][k])
                for k, name in enumerate(group.targets[at])
            }
            return named | {name: Change(True, evaluate(formula, scope)) for name, formula in kind.formulas[at]}

        state, constants = system.start(parameters, changes_of(0, plain), begins[0])
        simulation = Simulation(system, constants, self.tolerances)
        run = run_reversibly if reversibly else Simulation.run
        memory, end = first_memory(system), begins[0]
        recorded: list[Array] = []
        for at, to_rest in enumerate(kind.before_equilibrium):
            if at:
                scope = system.scope(begins[at], state, constants)
                state = system.change(state, scope, changes_of(at, scope), keeps_concentrations=True)
            is_last = at == len(kind.before_equilibrium) - 1
            last = jnp.max(jnp.where(jnp.isfinite(stops[at]), stops[at], -jnp.inf), initial=-jnp.inf)
            end = jnp.maximum(last, begins[at]) if is_last else begins[at + 1]
            period = Period(begins[at], jnp.asarray(jnp.inf) if to_rest else end, stops[at])
            state, rows, memory = run(simulation, period, state, memory, waits=not is_last, until_steady=to_rest)
            recorded.append(rows)
        if kind.ends_steady:
            begin = end
            period = Period(begin, jnp.asarray(jnp.inf), jnp.zeros(0))
            recorded.append(run(simulation, period, state, memory, waits=False, until_steady=True)[0][None])
        return jnp.concatenate(recorded), {name: as_float(value) for name, value in constants.items()}

    def _record(self, x: Float[Array, " parameter"], reversibly: bool = False) -> Recorded:
        parameters = self._parameters(x)
        return tuple(self._simulate(group, parameters, reversibly) for group in self.groups)

    def observe(self, x: Float[Array, " parameter"], recorded: Recorded) -> Outputs:
        """Computes the outputs from recorded states; traced, in double precision."""
        parameters = self._parameters(x)
        overrides = stack_scalars([evaluate(f, Scope(parameters, self.problem.model.initial)) for f in self.overrides])
        simulated: list[Array] = []
        log_sigma: list[Array] = []
        for group, (states, constants) in zip(self.groups, recorded, strict=True):
            for block in group.blocks:
                replaced = {name: overrides[index] for name, index in block.overrides.items()}
                here = {name: as_float(value)[block.experiment] for name, value in constants.items()}
                scope = self.system.scope(jnp.asarray(block.time), states[block.experiment, block.row], here | replaced)
                observable = self.problem.observables[block.observable]
                count = (len(block.places),)
                value = jnp.broadcast_to(as_float(evaluate(observable.formula, scope)), count)
                sigma = jnp.broadcast_to(as_float(evaluate(observable.noise, scope)), count)
                simulated.append(to_scale(value, observable.scale))
                log_sigma.append(jnp.log(sigma))
        return Outputs(jnp.concatenate(simulated), jnp.concatenate(log_sigma))

    def _split(self, values: Array) -> list[Array]:
        """Splits an array along its first axis into blocks."""
        ends = np.cumsum([len(block.places) for block in self.blocks])
        return [values[end - len(block.places) : end] for block, end in zip(self.blocks, ends, strict=True)]

    def total(self, outputs: Outputs) -> Float[Array, ""]:
        """Computes the log-likelihood of all measurements; traced."""
        parts = zip(self.blocks, self._split(outputs.simulated), self._split(outputs.log_sigma), strict=True)
        return jnp.sum(jnp.stack([jnp.sum(block.noise.log_density(z, s)) for block, z, s in parts]))

    def _evaluate(self, x: Float[Array, " parameter"]) -> Evaluation:
        recorded = self._record(x)
        outputs = self.observe(x, recorded)
        return Evaluation(finite_or_worst(self.total(outputs)), outputs, recorded)

    def _differentiate(self, x: Float[Array, " parameter"]) -> Derivatives:
        """Computes the log-likelihood and all derivatives with forward sensitivities."""

        def twice(x: Float[Array, " parameter"]) -> tuple[Outputs, Outputs]:
            outputs = self.observe(x, self._record(x))
            return outputs, outputs

        slopes, outputs = jax.jacfwd(twice, has_aux=True)(x)
        gradient, fisher = self.slope_and_information(outputs, slopes)
        return Derivatives(finite_or_worst(self.total(outputs)), gradient, fisher, outputs, slopes)

    def slope_and_information(
        self, outputs: Outputs, slopes: Outputs
    ) -> tuple[Float[Array, " parameter"], Float[Array, "parameter parameter"]]:
        """Computes the gradient and the Fisher information from derivatives of the outputs; traced."""
        count = slopes.simulated.shape[1]
        gradient, fisher = jnp.zeros(count), jnp.zeros((count, count))
        split = map(self._split, (*outputs, *slopes))
        for block, z, s, dz, ds in zip(self.blocks, *split, strict=True):
            by_value, by_sigma = block.noise.slopes(z, s)
            gradient = gradient + by_value @ dz + by_sigma @ ds
            of_value, of_sigma = block.noise.information(s)
            fisher = fisher + (dz * of_value[:, None]).T @ dz + of_sigma * ds.T @ ds
        return gradient, fisher

    def _value(self, x: Float[Array, " parameter"]) -> Float[Array, ""]:
        return self._evaluate(x).value

    def _value_and_gradient(self, x: Float[Array, " parameter"]) -> tuple[Array, Array]:
        if not self.is_reversible:
            derivatives = self._differentiate(x)
            return derivatives.value, derivatives.gradient

        def value(x: Float[Array, " parameter"]) -> Float[Array, ""]:
            return self.total(self.observe(x, self._record(x, reversibly=True)))

        log_likelihood, gradient = jax.value_and_grad(value)(x)
        return finite_or_worst(log_likelihood), gradient

    @property
    def is_reversible(self) -> bool:
        """Whether gradients use the reverse sweep, which does not support events."""
        return len(self.names) >= MIN_PARAMETERS_OF_SWEEP and not self.problem.model.events

    def trace_log_prior(self, x: Float[Array, " parameter"]) -> Float[Array, ""]:
        """Computes `log_prior` inside a traced function."""
        densities = log_priors(self.problem.parameters, self._parameters(x))
        return sum(densities.values(), jnp.zeros(()))

    @cached_property
    def _programs(self) -> dict[str, Callable[[Array], PyTree]]:
        # Fusion pays off for large systems only.
        options = None if self.system.is_large else WITHOUT_FUSION_EMITTERS
        return {
            function.__name__: jax.jit(function, compiler_options=options)
            for function in (self._evaluate, self._differentiate, self._value_and_gradient, self.trace_log_prior)
        } | {"prior_gradient": jax.jit(jax.grad(self.trace_log_prior))}

    def _threads(self) -> AbstractContextManager[object]:
        """Limits inverses of large matrices to one thread; several threads wait for each other on busy cores."""
        if not self.system.is_large:
            return nullcontext()
        importlib.import_module("scipy.linalg")  # JAX uses its LAPACK, and limits apply to loaded libraries only.
        return threadpool_limits(1, user_api="blas")

    def evaluate(self, x: ArrayLike) -> Evaluation:
        """Computes the log-likelihood and the simulated values, on the scale of the noise, in the order of `blocks`."""
        with jax.enable_x64(True), self._threads():
            return jax.device_get(self._programs["_evaluate"](self._check(x)))

    def differentiate(self, x: ArrayLike) -> Derivatives:
        """Computes the same with the gradient, the Fisher information, and the derivatives of the outputs."""
        with jax.enable_x64(True), self._threads():
            return jax.device_get(self._programs["_differentiate"](self._check(x)))

    # Public methods

    def log_likelihood(self, x: ArrayLike) -> float | Float[Array, ""]:
        """Computes the log-likelihood at a point; minus infinity if the simulation fails.

        Can be called inside `jax.jit` and differentiated with `jax.grad`, in double precision
        (`jax.config.update("jax_enable_x64", True)`).
        """
        if isinstance(x, Tracer):
            if jnp.result_type(x) != np.float64:
                raise ValueError('a traced x must be float64: jax.config.update("jax_enable_x64", True).')
            return self._differentiable(cast(Array, x))
        return float(self.evaluate(x).value)

    def gradient(self, x: ArrayLike) -> Float[np.ndarray, " parameter"]:
        """Computes the gradient of the log-likelihood."""
        with jax.enable_x64(True), self._threads():
            return np.asarray(jax.device_get(self._programs["_value_and_gradient"](self._check(x))[1]))

    def fisher_information(self, x: ArrayLike) -> Float[np.ndarray, "parameter parameter"]:
        """Computes the expected Fisher information."""
        return np.asarray(self.differentiate(x).fisher)

    def log_prior(self, x: ArrayLike) -> float:
        """Computes the logarithm of the prior density; zero without priors."""
        with jax.enable_x64(True):
            return float(self._programs["trace_log_prior"](self._check(x)))

    def gradient_of_log_prior(self, x: ArrayLike) -> Float[np.ndarray, " parameter"]:
        """Computes the gradient of the logarithm of the prior density."""
        with jax.enable_x64(True):
            return jax.device_get(self._programs["prior_gradient"](self._check(x)))

    def simulate(self, x: ArrayLike) -> Float[np.ndarray, " measurement"]:
        """Simulates each measurement, in the order of the problem, not transformed."""
        values = np.empty(len(self.order))
        for block, simulated, _ in self._blocks_at(x):
            values[block.places] = from_scale(simulated, block.noise.scale)
        return values

    def chi2(self, x: ArrayLike) -> float:
        """Computes the sum of squared residuals divided by their sigmas, on the scale of the noise."""
        return float(sum(np.sum(np.asarray(b.noise.residuals(z, s)) ** 2) for b, z, s in self._blocks_at(x)))

    def _blocks_at(self, x: ArrayLike) -> Iterator[tuple[Block, Array, Array]]:
        """Yields the blocks with their simulated values and the logarithms of sigma."""
        with jax.enable_x64(True):
            outputs = map(jnp.asarray, self.evaluate(x).outputs)
            yield from zip(self.blocks, *map(self._split, outputs), strict=True)


def finite_or_worst(value: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def group_targets(group: Group) -> dict[str, bool]:
    """Returns the names that the first condition changes, and whether it changes them in all experiments."""
    is_changed = {name: bool(group.given[0][:, at].all()) for at, name in enumerate(group.targets[0])}
    return is_changed | {name: True for name, _ in group.kind.formulas[0]}


class Screen:
    """Selects the best starts among points.

    At a random point, scales, offsets and noise are wrong by decades, which masks the fit of the dynamics. They are
    fitted first, which needs no simulation. (Schmiester, Schälte, Fröhlich, Hasenauer and Weindl, 2020:
    Efficient parameterization of large-scale dynamic models based on relative measurements. Bioinformatics 36, 594.)
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        fitted = observation_parameters(objective.problem)
        self.at = np.array([at for at, name in enumerate(objective.names) if name in fitted], int)
        self.lower, self.upper = (bound[self.at] for bound in objective.bounds)

    def choose(self, points: Float[np.ndarray, "point parameter"]) -> Float[np.ndarray, " parameter"]:
        """Returns the best of several points, with scales, offsets and noise fitted."""
        return max(map(self.adapt, points), key=lambda found: found[0] if np.isfinite(found[0]) else -np.inf)[1]

    def adapt(self, x: Float[np.ndarray, " parameter"]) -> tuple[float, Float[np.ndarray, " parameter"]]:
        """Fits scales, offsets and noise at a point; returns the log-likelihood and the new point."""
        evaluation = self.objective.evaluate(x)
        if not (self.at.size and np.isfinite(evaluation.value)):
            return float(evaluation.value), x
        with jax.enable_x64(True):
            value, x = jax.device_get(self._program(jnp.asarray(x), evaluation.recorded))
        return float(value), np.asarray(x)

    @cached_property
    def _program(self):
        return jax.jit(self._adapt, compiler_options=WITHOUT_FUSION_EMITTERS)

    def _adapt(self, x: Float[Array, " parameter"], recorded: Recorded) -> tuple[Array, Array]:
        """Takes damped steps with the Fisher information within the bounds (Levenberg and Marquardt)."""

        def look(y: Float[Array, " parameter"]) -> tuple[Array, tuple[Array, Array]]:
            value, *local = self._differentiate(x, y, recorded)
            return -value, (local[0], local[1])

        def propose(now: DampedSearch) -> tuple[Array, Array]:
            return step_within_bounds(now, self.lower, self.upper), jnp.zeros((), bool)

        last = search_damped(look, propose, x[self.at], damping=SCREENING_DAMPING, evaluations=SCREENING_EVALUATIONS)
        return -last.value, x.at[self.at].set(last.best)

    def _differentiate(
        self, x: Float[Array, " parameter"], y: Float[Array, " observation"], recorded: Recorded
    ) -> tuple[Array, Array, Array]:
        """Computes the log-likelihood, its gradient and the Fisher information at other fitted values."""

        def twice(y: Float[Array, " observation"]) -> tuple[Outputs, Outputs]:
            outputs = self.objective.observe(x.at[self.at].set(y), self._update(recorded, y))
            return outputs, outputs

        slopes, outputs = jax.jacfwd(twice, has_aux=True)(y)
        return finite_or_worst(self.objective.total(outputs)), *self.objective.slope_and_information(outputs, slopes)

    def _update(self, recorded: Recorded, y: Float[Array, " observation"]) -> Recorded:
        """Returns the recorded states with the fitted parameters among their constants."""
        fitted = [self.objective.estimated[at] for at in map(int, self.at)]
        values = {
            parameter.name: from_scale(value, parameter.scale) for parameter, value in zip(fitted, y, strict=True)
        }
        return tuple(
            (states, {**constants, **{name: jnp.full(len(states), value) for name, value in values.items()}})
            for states, constants in recorded
        )


def step_within_bounds(now: DampedSearch, lower: np.ndarray, upper: np.ndarray) -> Float[Array, " parameter"]:
    """Returns the next point within the bounds; parameters that the gradient pushes against a bound stay fixed."""
    gradient, information = now.at
    is_fixed = ((now.best <= lower) & (gradient < 0)) | ((now.best >= upper) & (gradient > 0))
    is_free_pair = ~jnp.logical_or.outer(is_fixed, is_fixed)
    added = jnp.where(is_fixed, 1.0, now.damping * (jnp.diag(information) + 1e-3))
    matrix = jnp.where(is_free_pair, information, 0.0) + jnp.diag(added)
    raw_step = jnp.linalg.solve(matrix, jnp.where(is_fixed, 0.0, gradient))
    return jnp.clip(now.best + jnp.clip(raw_step, -LONGEST_SCREENING_STEP, LONGEST_SCREENING_STEP), lower, upper)


def objective(problem: Problem, tolerances: Tolerances = DEFAULT_TOLERANCES) -> Objective:
    """Returns a PEtab problem's objective: `names`, `nominal`, `log_likelihood`, `gradient`, `fisher_information`.

    ```python
    objective = node_fit.objective(node_fit.read_petab("problem.yaml"))
    objective.log_likelihood(objective.nominal)
    ```
    """
    return Objective(problem, tolerances)
