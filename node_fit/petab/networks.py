"""Networks in place of rates that a model lacks: formulas whose weights are parameters of the problem."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np

from .formulas import TIME, Application, Formula, Number, Symbol, symbols
from .system import Model
from .tables import PEtabError, Prior, Problem, TableParameter, read_petab

MOST_WIDTH = 50
# Weights are looked for within these bounds, and have a standard normal density. The output's size is on a logarithmic
# scale.
GREATEST_WEIGHT, LEAST_SIZE, GREATEST_SIZE = 10.0, 1e-5, 1e5


@dataclass(frozen=True)
class PEtab:
    """Where a PEtab problem is: `data=petab` of the command.

    **Arguments:**

    - `path`: the problem's YAML file.
    - `networks`, `width`: as of `with_networks`.
    """

    path: str
    networks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    width: int = 5

    def read(self) -> Problem:
        """Reads the problem, as `read_petab` does."""
        return with_networks(read_petab(self.path), self.networks, self.width)


def with_networks(problem: Problem, networks: Mapping[str, Sequence[str]], width: int = 5) -> Problem:
    """A problem in which networks stand for what its model lacks.

    ```python
    problem = node_fit.with_networks(node_fit.read_petab("problem.yaml"), {"v1": ["A", "B"]})
    ```

    **Arguments:**

    - `networks`: for each network, the names that it sees. Its own name is that of a reaction, whose rate it becomes;
      of a constant, whose value it becomes; or of a state, to whose derivative it is added.
    - `width`: of its layer of `tanh`.

    **Raises:** `PEtabError` for names that the model does not have, or that can't be a network.
    """
    if not isinstance(width, int) or not 1 <= width <= MOST_WIDTH:
        raise PEtabError(f"width must be an integer from 1 to {MOST_WIDTH}, got {width!r:.20}.")
    for seed, (name, inputs) in enumerate(networks.items()):
        problem = with_network(problem, name, list(inputs), width, seed)
    return problem


def with_network(problem: Problem, name: str, inputs: Sequence[str], width: int, seed: int) -> Problem:
    model, parameters = problem.model, problem.parameters
    if not inputs:
        raise PEtabError(f"networks.{name} must name what it sees, as in networks.{name}=[A,B].")
    for each in inputs:
        if each not in model.names() or (each == name and name not in model.rates):
            raise PEtabError(f"networks.{name}: {each!r} is nothing that it can see{nearest(each, model, name)}.")
    weights = {each.name: each for each in network_parameters(name, inputs, width, seed)}
    formula = network_formula(name, {each: typical_size(problem, each) for each in inputs}, width)
    changed = replace(problem, model=model_with(model, name, formula))
    # Constants of the rate that the network stands for are estimated no more.
    lost = {name} | (set(used_names(problem)) - set(used_names(changed)))
    kept = {each: parameter for each, parameter in parameters.items() if each not in lost}
    changed.model.check([*weights, *kept])
    return replace(changed, parameters={**weights, **kept})


def used_names(problem: Problem) -> Iterator[str]:
    """The names in all formulas of a problem."""
    formulas = [formula for _, formula in problem.model.formulas()]
    formulas += [formula for each in problem.observables.values() for formula in (each.formula, each.noise)]
    formulas += [formula for each in problem.measurements for formula in (*each.overrides, *each.noise_overrides)]
    periods = [period for each in problem.experiments.values() for period in each]
    formulas += [formula for period in periods for formula in period.changes.values()]
    for formula in dict.fromkeys(formulas):
        yield from symbols(formula)


def model_with(model: Model, name: str, formula: Formula) -> Model:
    """A model in which a formula is the rate of a reaction, the value of a constant, or adds to a derivative."""
    if name in model.reactions:
        return replace(model, reactions={**model.reactions, name: formula})
    if name in model.rates:
        container = model.containers.get(name)
        flow = formula if container is None else Application("*", (formula, Symbol(container)))
        return replace(model, rates={**model.rates, name: Application("+", (model.rates[name], flow))})
    if any(name in event.assignments for event in model.events):
        raise PEtabError(f"networks.{name}: an event of {model.place} sets {name!r}, which can't be a network then.")
    if name in model.initial or name in model.rules:
        initial = {each: start for each, start in model.initial.items() if each != name}
        return replace(model, initial=initial, rules={**model.rules, name: formula})
    raise PEtabError(f"networks: {name!r} is no reaction, constant or state of {model.place}{nearest(name, model)}.")


def nearest(name: str, model: Model, *but: str) -> str:
    close = get_close_matches(name, sorted(model.names().difference(but)), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def typical_size(problem: Problem, name: str) -> float:
    """The largest measured or the first value of a quantity; 1 if neither is known."""
    if name == TIME:
        sizes = [each.time for each in problem.measurements]
    else:
        observed = {each.name for each in problem.observables.values() if each.formula == Symbol(name)}
        sizes = [abs(each.value) for each in problem.measurements if each.observable in observed]
    start = problem.model.initial.get(name)
    if not sizes and isinstance(start, Number):
        sizes = [abs(float(start.value))]
    return max((size for size in sizes if 0 < size < math.inf), default=1.0)


def network_formula(name: str, sizes: Mapping[str, float], width: int) -> Formula:
    """`size * (bias + weights @ tanh(biases + weights @ (inputs / sizes)))`."""

    def product(*factors: Formula) -> Formula:
        return Application("*", factors)

    scaled = {each: Application("/", (Symbol(each), Number(size))) for each, size in sizes.items()}
    terms: list[Formula] = [Symbol(f"{name}_bias")]
    for unit in range(1, width + 1):
        inside = [product(Symbol(f"{name}_{unit}_{each}"), scaled[each]) for each in sizes]
        layer = Application("+", (Symbol(f"{name}_{unit}_bias"), *inside))
        terms.append(product(Symbol(f"{name}_{unit}"), Application("tanh", (layer,))))
    return product(Symbol(f"{name}_size"), Application("+", tuple(terms)))


def network_parameters(name: str, inputs: Sequence[str], width: int, seed: int) -> Iterator[TableParameter]:
    """The weights; the stored ones are of a network that is 0 everywhere."""
    random = np.random.default_rng(seed)
    yield table_parameter(f"{name}_size", "log10", LEAST_SIZE, GREATEST_SIZE, 1.0)
    yield weight(f"{name}_bias", 0.0)
    for unit in range(1, width + 1):
        yield weight(f"{name}_{unit}", 0.0)
        for each in ("bias", *inputs):
            yield weight(f"{name}_{unit}_{each}", round(float(random.normal()), 3))


def weight(name: str, value: float) -> TableParameter:
    found = table_parameter(name, "lin", -GREATEST_WEIGHT, GREATEST_WEIGHT, value)
    row = {**found.row, "objectivePriorType": "normal", "objectivePriorParameters": "0;1"}
    return found._replace(prior=Prior("normal", (0.0, 1.0), False, False), row=row)


def table_parameter(name: str, scale: str, lower: float, upper: float, nominal: float) -> TableParameter:
    """An estimated parameter that no table has, with the row that it would be."""
    row = {
        "parameterId": name, "parameterScale": scale, "lowerBound": repr(lower), "upperBound": repr(upper),
        "nominalValue": "" if math.isnan(nominal) else repr(nominal), "estimate": "1",
    }  # fmt: skip
    return TableParameter(name, scale, lower, upper, nominal, True, None, row)
