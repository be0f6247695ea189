"""Sources of problems: PEtab's files, or an SBML model with a table; and networks or another loss for a problem."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset, read_table
from ..data.tables.reading import column_names
from ..expressions.evaluation import as_float, evaluate
from ..expressions.tree import Application, Expression, Number, Symbol, symbols
from ..likelihood.losses import LOSSES, AbstractLikelihood, AbstractResidualLoss, as_loss
from .formulas import TIME, parse_formula
from .sbml import read_sbml
from .system import Model, Scope
from .tables import (
    NOISES,
    Condition,
    Measurement,
    Observable,
    PEtabError,
    Prior,
    Problem,
    TableParameter,
    check_problem,
    read_petab,
)

MOST_WIDTH = 50
# Bounds of the weights, which have a standard normal prior, and bounds of the output's size, on a logarithmic scale.
GREATEST_WEIGHT, LEAST_SIZE, GREATEST_SIZE = 10.0, 1e-5, 1e5
# Maximum number of names in a message.
MOST_LISTED = 12
TIME_COLUMNS = ("time", "t", "Time", "TIME")
# Bounds of a positive parameter without a value.
LEAST_VALUE, GREATEST_VALUE = 1e-5, 1e5
# Bounds of the noise scale, as shares of the standard deviation of the measurements.
LEAST_NOISE_SHARE, FIRST_NOISE_SHARE, MOST_NOISE_SHARE = 1e-4, 0.1, 10.0


@dataclass(frozen=True)
class PEtab:
    """The source of a PEtab problem: `data=petab` of the command.

    **Arguments:**

    - `path`: the problem's YAML file.
    - `networks`, `width`: as of `with_networks`.
    """

    path: str
    networks: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    width: int = 5

    def read(self) -> Problem:
        """Reads the problem, as `read_petab` does."""
        return with_networks(read_petab(self.path), self.networks, self.width)


def with_loss(problem: Problem, loss: AbstractLikelihood | str) -> Problem:
    """Returns a problem with another noise distribution than in its tables, on the same scale, to allow for outliers.

    ```python
    problem = node_fit.with_loss(node_fit.read_petab("problem.yaml"), "huber")
    ```

    **Arguments:** `loss`: a loss of residuals, or its name.

    **Raises:** `PEtabError` for likelihoods of counts, and for losses with constants that are fitted.
    """
    chosen = as_loss(loss)
    if not isinstance(chosen, AbstractResidualLoss) or chosen.shapes:
        names = [
            name
            for name, candidate in LOSSES.items()
            if isinstance(candidate, AbstractResidualLoss) and not candidate.shapes
        ]
        raise PEtabError(
            f"{problem.path.name}: loss must be {', '.join(names[:-1])} or {names[-1]} with constants that are given, "
            f"since a PEtab problem has scales for its noise alone; got {type(chosen).__name__}."
        )
    observables = {name: observable._replace(loss=chosen) for name, observable in problem.observables.items()}
    return replace(problem, observables=observables)


def with_networks(problem: Problem, networks: Mapping[str, Sequence[str]], width: int = 5) -> Problem:
    """Returns a problem in which networks replace unknown parts of its model.

    ```python
    problem = node_fit.with_networks(node_fit.read_petab("problem.yaml"), {"v1": ["A", "B"]})
    ```

    **Arguments:**

    - `networks`: the inputs of each network, by its name. The name is that of a reaction, whose rate it becomes; of a
      constant, whose value it becomes; or of a state, to whose derivative it is added.
    - `width`: width of its `tanh` layer.

    **Raises:** `PEtabError` for names that the model does not have, or that can't be a network.
    """
    check_width(width)
    for seed, (name, inputs) in enumerate(networks.items()):
        problem = with_network(problem, name, list(inputs), width, seed)
    return problem


def with_network(problem: Problem, name: str, inputs: Sequence[str], width: int, seed: int) -> Problem:
    model, parameters = problem.model, problem.parameters
    if not inputs:
        raise PEtabError(f"networks.{name} must name what it sees, as in networks.{name}=[A,B].")
    for input_name in inputs:
        if input_name not in model.names() or (input_name == name and name not in model.rates):
            raise PEtabError(
                f"networks.{name}: {input_name!r} is nothing that it can see{nearest(input_name, model, name)}."
            )
    weights = {new.name: new for new in network_parameters(name, inputs, width, seed)}
    formula = network_formula(name, {input_name: typical_size(problem, input_name) for input_name in inputs}, width)
    changed = replace(problem, model=model_with(model, name, formula))
    # Constants that occur only in the replaced rate are no longer estimated.
    lost = {name} | (set(used_names(problem)) - set(used_names(changed)))
    kept = {label: parameter for label, parameter in parameters.items() if label not in lost}
    changed.model.check([*weights, *kept])
    return replace(changed, parameters={**weights, **kept})


def check_width(width: object) -> None:
    if not isinstance(width, int) or not 1 <= width <= MOST_WIDTH:
        raise PEtabError(f"width must be an integer from 1 to {MOST_WIDTH}, got {width!r:.20}.")


def used_names(problem: Problem) -> Iterator[str]:
    """Collects the names in all formulas of a problem."""
    formulas = [formula for _, formula in problem.model.formulas()]
    formulas += [formula for row in problem.observables.values() for formula in (row.formula, row.noise)]
    formulas += [formula for row in problem.measurements for formula in (*row.overrides, *row.noise_overrides)]
    periods = [period for experiment in problem.experiments.values() for period in experiment]
    formulas += [formula for period in periods for formula in period.changes.values()]
    for formula in dict.fromkeys(formulas):
        yield from symbols(formula)


def model_with(model: Model, name: str, formula: Expression) -> Model:
    """Returns a model with a formula as a reaction's rate, as a constant's value, or added to a derivative."""
    if name in model.reactions:
        return replace(model, reactions={**model.reactions, name: formula})
    if name in model.rates:
        container = model.containers.get(name)
        flow = formula if container is None else Application("*", (formula, Symbol(container)))
        return replace(model, rates={**model.rates, name: Application("+", (model.rates[name], flow))})
    if any(name in event.assignments for event in model.events):
        raise PEtabError(f"networks.{name}: an event of {model.place} sets {name!r}, which can't be a network then.")
    if name in model.initial or name in model.rules:
        initial = {quantity: start for quantity, start in model.initial.items() if quantity != name}
        return replace(model, initial=initial, rules={**model.rules, name: formula})
    raise PEtabError(f"networks: {name!r} is no reaction, constant or state of {model.place}{nearest(name, model)}.")


def list_places(problem: Problem) -> str:
    """Lists the names that a network can replace in a problem, as text."""
    model = problem.model
    others = {*model.rates, *model.containers.values(), *(name for event in model.events for name in event.assignments)}
    places = {
        "the rate of": list(model.reactions),
        "the constant": [name for name in model.initial if name not in others],
        "a part of the derivative of": list(model.rates),
    }
    return "; or ".join(f"{kind} {some_of(names)}" for kind, names in places.items() if names)


def some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "")


def nearest(name: str, model: Model, *but: str) -> str:
    close = get_close_matches(name, sorted(model.names().difference(but)), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def typical_size(problem: Problem, name: str) -> float:
    """Returns the largest measured or the initial value of a quantity; 1 if neither is known."""
    if name == TIME:
        sizes = [measurement.time for measurement in problem.measurements]
    else:
        observed = {
            observable.name for observable in problem.observables.values() if observable.formula == Symbol(name)
        }
        sizes = [abs(measurement.value) for measurement in problem.measurements if measurement.observable in observed]
    start = problem.model.initial.get(name)
    if not sizes and isinstance(start, Number):
        sizes = [abs(float(start.value))]
    return max((size for size in sizes if 0 < size < math.inf), default=1.0)


def network_formula(name: str, sizes: Mapping[str, float], width: int) -> Expression:
    """Returns `size * (bias + weights @ tanh(biases + weights @ (inputs / sizes)))`."""

    def product(*factors: Expression) -> Expression:
        return Application("*", factors)

    scaled = {input_name: Application("/", (Symbol(input_name), Number(size))) for input_name, size in sizes.items()}
    terms: list[Expression] = [Symbol(f"{name}_bias")]
    for unit in range(1, width + 1):
        inside = [product(Symbol(f"{name}_{unit}_{input_name}"), scaled[input_name]) for input_name in sizes]
        layer = Application("+", (Symbol(f"{name}_{unit}_bias"), *inside))
        terms.append(product(Symbol(f"{name}_{unit}"), Application("tanh", (layer,))))
    return product(Symbol(f"{name}_size"), Application("+", tuple(terms)))


def network_parameters(name: str, inputs: Sequence[str], width: int, seed: int) -> Iterator[TableParameter]:
    """Yields the weights; the stored values give a network that is 0 everywhere."""
    random = np.random.default_rng(seed)
    yield table_parameter(f"{name}_size", "log10", LEAST_SIZE, GREATEST_SIZE, 1.0)
    yield weight(f"{name}_bias", 0.0)
    for unit in range(1, width + 1):
        yield weight(f"{name}_{unit}", 0.0)
        for source in ("bias", *inputs):
            yield weight(f"{name}_{unit}_{source}", round(float(random.normal()), 3))


def weight(name: str, value: float) -> TableParameter:
    found = table_parameter(name, "lin", -GREATEST_WEIGHT, GREATEST_WEIGHT, value)
    row = {**found.row, "objectivePriorType": "normal", "objectivePriorParameters": "0;1"}
    return found._replace(prior=Prior("normal", (0.0, 1.0), False, False), row=row)


def table_parameter(name: str, scale: str, lower: float, upper: float, nominal: float) -> TableParameter:
    """Returns an estimated parameter that is in no table, with its row."""
    row = {
        "parameterId": name, "parameterScale": scale, "lowerBound": repr(lower), "upperBound": repr(upper),
        "nominalValue": "" if math.isnan(nominal) else repr(nominal), "estimate": "1",
    }  # fmt: skip
    return TableParameter(name, scale, lower, upper, nominal, True, None, row)


@dataclass(frozen=True)
class SBML:
    """An SBML model and a table of measurements: `data=sbml` of the command.

    **Arguments:**

    - `path`: the model's file.
    - `table`: the measurements, one row per time, in any format of `node_fit.read_table`.
    - `time`, `trajectory`: columns of times and of the names of trajectories. The default time is `time` or `t`.
    - `observables`: fitted columns, or their formulas by column: `{"signal": "scale * (A + B)"}`. `None` for all
      columns without another role, which must have names of the model.
    - `conditions`: columns, constant within a trajectory, that set the model's quantities of these names.
    - `parameters`: the model's quantities to estimate, including initial values of species; `None` for those without a
      value.
    - `decades`: bounds of a parameter, in decades around its value in the model. `bounds`: explicit bounds by name.
    - `noise`: its distribution, one of PEtab's. `sigma`: its scale, for all columns or by column, or `estimate`.
    - `networks`, `width`: as of `with_networks`.
    """

    path: str
    table: str
    time: str | None = None
    trajectory: str | None = None
    observables: Sequence[str] | Mapping[str, str] | None = None
    conditions: Sequence[str] = ()
    parameters: Sequence[str] | None = None
    decades: float = 3.0
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    noise: str = "normal"
    sigma: str | float | Mapping[str, float] = "estimate"
    networks: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    width: int = 5

    def read(self) -> Problem:
        """Reads both files.

        **Raises:** `ValueError` or `FileNotFoundError` that names the file and the column or the key.
        """
        self.check()
        model, columns = read_sbml(self.path), column_names(Path(self.table))
        return with_networks(ModelTable(self, model, columns).problem(), self.networks, self.width)

    def check(self) -> None:
        if self.noise not in NOISES:
            raise PEtabError(f"noise must be one of {', '.join(NOISES)}, got {self.noise!r:.30}.")
        if not (math.isfinite(self.decades) and self.decades > 0):
            raise PEtabError(f"decades must be positive, got {self.decades}.")
        sigmas = [self.sigma] if isinstance(self.sigma, (str, int, float)) else list(self.sigma.values())
        wrong = [
            sigma for sigma in sigmas if sigma != "estimate" and (isinstance(sigma, str) or not 0 < sigma < math.inf)
        ]
        if wrong:
            raise PEtabError(f"sigma must be `estimate` or a positive number, got {wrong[0]!r:.30}.")
        for name, pair in self.bounds.items():
            if len(pair) != 2 or not pair[0] < pair[1]:
                raise PEtabError(f"bounds.{name} must be a lower and an upper bound, got {list(pair)}.")


class ModelTable:
    """Builds a `Problem` from a model and a table."""

    def __init__(self, given: SBML, model: Model, columns: Sequence[str]):
        self.given, self.model, self.columns = given, model, columns
        self.file = Path(given.table).name
        self.names = sorted(model.names())
        self.time = given.time or next((name for name in TIME_COLUMNS if name in columns), None)
        if self.time is None:
            raise PEtabError(f"{self.file} has no column `time` or `t`; name it: data.time=COLUMN.")
        self.formulas = self.observed_formulas()
        self.data = read_table(
            given.table, time=self.time, trajectory=given.trajectory, states=list(self.formulas),
            covariates=list(given.conditions),
        )  # fmt: skip

    def problem(self) -> Problem:
        self.check_conditions()
        parameters = {parameter.name: parameter for parameter in self.parameters()}
        observables: dict[str, Observable] = {}
        for at, (column, formula) in enumerate(self.formulas.items()):
            noise, noise_parameters = self.noise(column, self.data.ys[..., at])
            parameters |= {parameter.name: parameter for parameter in noise_parameters}
            loss, scale = NOISES[self.given.noise]
            observables[column] = Observable(column, formula, noise, loss, scale, (), ())
        experiments = {name: (Condition(0.0, self.changes(at)),) for at, name in enumerate(self.data.trajectories)}
        problem = Problem(
            Path(self.given.path), 1, self.model, parameters, observables, experiments, tuple(measurements(self.data))
        )
        check_problem(problem)
        return problem

    # Columns

    def observed_formulas(self) -> dict[str, Expression]:
        """Returns a formula for each fitted column."""
        given, model = self.given.observables, self.model.place
        if isinstance(given, Mapping):
            return {str(name): parse_formula(text, f"observables.{name}") for name, text in given.items()}
        others = {self.time, self.given.trajectory, *self.given.conditions}
        columns = [name for name in self.columns if name not in others] if given is None else list(given)
        unknown = next((name for name in columns if name not in self.names), None)
        if unknown is not None:
            way = "" if given is not None else f"leave it out, data.observables=[{self.some_columns(columns)}], or "
            raise PEtabError(
                f"{self.file}: {unknown!r} is nothing in {model}{self.near(unknown)}; {way}give its formula, "
                f'data.observables={{{unknown}: "..."}}, or its role, as in data.trajectory={unknown}.'
            )
        if not columns:
            raise PEtabError(f"{self.file} has no column beside {', '.join(map(str, filter(None, others)))}.")
        return {name: Symbol(name) for name in columns}

    def some_columns(self, columns: Iterable[str]) -> str:
        return ",".join([name for name in columns if name in self.names]) or "COLUMN"

    def near(self, name: str) -> str:
        close = get_close_matches(name, self.names, 1)
        return f", whose nearest name is {close[0]!r}" if close else ""

    def check_conditions(self) -> None:
        for name in self.given.conditions:
            if name not in self.model.initial:
                raise PEtabError(
                    f"conditions: {name!r} is no quantity of {self.model.place} that can be set{self.near(name)}."
                )

    def changes(self, trajectory: int) -> dict[str, Expression]:
        """Returns the values that the conditions of a trajectory set."""
        first = self.data.us[trajectory, 0]
        return {name: Number(float(first[self.data.inputs.index(name)])) for name in self.given.conditions}

    # Parameters

    def parameters(self) -> list[TableParameter]:
        """Returns the estimated quantities of the model, and the unknown names in formulas of observables."""
        given, model = self.given, self.model
        new = [name for formula in self.formulas.values() for name in symbols(formula) if name not in self.names]
        lacking = [name for name in model.without_value() if name not in (*given.conditions, *given.networks)]
        named = lacking if given.parameters is None else list(given.parameters)
        for name in named:
            if name not in model.initial and name not in new:
                raise PEtabError(
                    f"parameters: {name!r} is no quantity of {model.place} with a value of its own{self.near(name)}; "
                    f"it has {self.choice()}."
                )
        forgotten = next((name for name in lacking if name not in named), None)
        if forgotten is not None:
            raise PEtabError(f"{model.place}: {forgotten!r} has no value; add it to data.parameters.")
        names = list(dict.fromkeys([*named, *new]))
        if not names and not given.networks:
            raise PEtabError(
                f"all quantities of {model.place} have values; name those to estimate, as in data.parameters="
                f"[{','.join(self.constants()[:2])}]; it has {self.choice()}."
            )
        stray = next((name for name in given.bounds if name not in names), None)
        if stray is not None:
            raise PEtabError(f"bounds: {stray!r} is not estimated; those that are: {', '.join(names)}.")
        return [self.parameter(name) for name in names]

    def constants(self) -> list[str]:
        """Quantities with a value that do not move and are not compartments."""
        containers = set(self.model.containers.values())
        return [name for name in self.model.initial if name not in self.model.rates and name not in containers]

    def choice(self) -> str:
        names = self.constants() or sorted(self.model.initial)
        return some_of(names)

    def parameter(self, name: str) -> TableParameter:
        value = self.value(name)
        if name in self.given.bounds:
            lower, upper = map(float, self.given.bounds[name])
        elif value > 0:
            lower, upper = value / 10**self.given.decades, value * 10**self.given.decades
        elif math.isnan(value):
            lower, upper = LEAST_VALUE, GREATEST_VALUE
        else:
            raise PEtabError(
                f"{self.model.place}: {name!r} is {value:g}, around which no decades can be laid; give its bounds: "
                f"'+data.bounds.{name}=[0,1]'."
            )
        inside = lower <= value <= upper
        return table_parameter(name, "log10" if lower > 0 else "lin", lower, upper, value if inside else math.nan)

    def value(self, name: str) -> float:
        """Returns the initial value of a quantity; NaN without one."""
        formulas = {**self.model.initial, **self.model.rules}
        if name not in formulas:
            return math.nan
        with jax.enable_x64(True):
            return float(as_float(evaluate(formulas[name], Scope({"time": 0.0}, formulas))))

    def noise(self, column: str, ys: Float[np.ndarray, "trajectory time"]) -> tuple[Expression, list[TableParameter]]:
        """Returns the noise scale of a column, and its parameter if it is estimated."""
        sigma = self.given.sigma
        column_sigma = sigma if isinstance(sigma, (str, int, float)) else sigma.get(column, "estimate")
        if not isinstance(column_sigma, str):
            return Number(float(column_sigma)), []
        measured = ys[np.isfinite(ys)]
        scale = NOISES[self.given.noise][1]
        with np.errstate(invalid="ignore", divide="ignore"):
            measured = measured if scale == "lin" else np.log(measured) if scale == "log" else np.log10(measured)
        spread = float(np.std(measured[np.isfinite(measured)])) if np.isfinite(measured).any() else 0.0
        spread = spread or 1.0
        name = f"sigma_{column}"
        bounds = LEAST_NOISE_SHARE * spread, MOST_NOISE_SHARE * spread
        return Symbol(name), [table_parameter(name, "log10", *bounds, FIRST_NOISE_SHARE * spread)]


def measurements(data: Dataset) -> Iterable[Measurement]:
    """Yields the measured values of a table, in the order of its trajectories, columns and rows."""
    for at, trajectory in enumerate(data.trajectories):
        for column, state in enumerate(data.states):
            for row in range(int(data.lengths[at])):
                time, value = float(data.ts[at, row]), float(data.ys[at, row, column])
                if math.isfinite(value):
                    cells = {
                        "observableId": state, "simulationConditionId": trajectory, "time": repr(time),
                        "measurement": repr(value),
                    }  # fmt: skip
                    yield Measurement(state, trajectory, time, value, (), (), cells)
