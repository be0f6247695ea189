"""PEtab problems of versions 1 and 2 read from their files."""

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import jax
import yaml

from ..expressions.evaluation import as_float, evaluate
from ..expressions.operations import Value
from ..expressions.tree import Expression, ExpressionSize, Symbol, measure, substitute, symbols
from ..likelihood.losses import LEAST_SQUARES, AbstractResidualLoss, Laplace
from ..runtime.serialization import is_json, is_list, parse_number, parse_plain_yaml
from ..runtime.validation import check_path
from .formulas import FormulaError, parse_formula, refuse_large
from .sbml import read_sbml
from .system import Model

MAX_YAML_BYTES, MAX_TABLE_BYTES, MAX_NODES_OF_OBSERVABLES = 100_000, 200_000_000, 100_000
SCALES = ("lin", "log", "log10")
# Distributions of PEtab 2, and of the priors and transformations of PEtab 1: loss and scale of the values.
NOISES = {
    "normal": (LEAST_SQUARES, "lin"), "laplace": (Laplace(), "lin"),
    "log-normal": (LEAST_SQUARES, "log"), "log-laplace": (Laplace(), "log"),
    "log10-normal": (LEAST_SQUARES, "log10"), "log10-laplace": (Laplace(), "log10"),
}  # fmt: skip
PRIORS = {
    "uniform": 2, "normal": 2, "laplace": 2, "log-normal": 2, "log-laplace": 2, "log-uniform": 2, "cauchy": 2,
    "gamma": 2, "chisquare": 1, "exponential": 1, "rayleigh": 1,
}  # fmt: skip
PRIORS_OF_VERSION_1 = {"logNormal": "log-normal", "logLaplace": "log-laplace"}
ON_SCALE = "parameterScale"


class PEtabError(ValueError):
    """Raised for a PEtab problem whose files are missing, damaged, or contradict each other."""


class Prior(NamedTuple):
    """A prior density of the value, or of the value on the parameter's scale."""

    name: str
    numbers: tuple[float, ...]
    is_on_scale: bool
    is_truncated: bool


class TableParameter(NamedTuple):
    """A row of the table of parameters; values and bounds are not transformed."""

    name: str
    scale: str
    lower: float
    upper: float
    nominal: float
    is_estimated: bool
    prior: Prior | None
    row: Mapping[str, str]


class Observable(NamedTuple):
    """An observable: its formula, the formula of the noise scale, and the distribution of the noise."""

    name: str
    formula: Expression
    noise: Expression
    loss: AbstractResidualLoss
    scale: str
    placeholders: tuple[str, ...]
    noise_placeholders: tuple[str, ...]


class Measurement(NamedTuple):
    """A measured value, with the overrides of the observable's placeholders."""

    observable: str
    experiment: str
    time: float
    value: float
    overrides: tuple[Expression, ...]
    noise_overrides: tuple[Expression, ...]
    row: Mapping[str, str]


class Condition(NamedTuple):
    """The time of changes and the new values; the time is negative infinity before an equilibrium."""

    time: float
    changes: Mapping[str, Expression]


@dataclass(frozen=True)
class Problem:
    """A PEtab problem.

    - `path`: the YAML file. `version`: 1 or 2.
    - `experiments`: for each name, conditions in the order of their times.
    """

    path: Path
    version: int
    model: Model
    parameters: Mapping[str, TableParameter]
    observables: Mapping[str, Observable]
    experiments: Mapping[str, tuple[Condition, ...]]
    measurements: tuple[Measurement, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def __repr__(self) -> str:
        estimated = sum(parameter.is_estimated for parameter in self.parameters.values())
        return (
            f"PEtab problem {self.name}: {len(self.model.rates)} states, {estimated} parameters to estimate, "
            f"{len(self.observables)} observables, {len(self.experiments)} experiments, "
            f"{len(self.measurements)} measurements"
        )


class Row(NamedTuple):
    """A row of a table, with its location for error messages."""

    cells: Mapping[str, str]
    place: str

    def text(self, column: str, default: str | None = None) -> str:
        text = (self.cells.get(column) or "").strip()
        if text or default is not None:
            return text or str(default)
        raise PEtabError(f"{self.place}: the column {column!r} is missing or empty.")

    def number(self, column: str, default: float | None = None) -> float:
        text = self.text(column, None if default is None else repr(default))
        try:
            return parse_number(text)
        except ValueError:
            raise PEtabError(f"{self.place}, column {column!r}: {text!r:.60} is not a number.") from None

    def formulas(self, column: str) -> tuple[Expression, ...]:
        text = self.text(column, "")
        place = f"{self.place}, column {column!r}"
        return tuple(parse_formula(part, place) for part in text.split(";")) if text else ()

    def formula(self, column: str) -> Expression:
        return parse_formula(self.text(column), f"{self.place}, column {column!r}")

    def names(self, column: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.text(column, "").split(";") if name.strip())


def read_petab(path: str | Path) -> Problem:
    """Reads a PEtab problem of version 1 or 2 with an SBML model; nothing in its files is executed.

    **Arguments:** `path`: the problem's YAML file. Its other files are in the same folder or below.

    **Raises:** `PEtabError`, `SBMLError` or `FormulaError`, with file, line and column.
    """
    path = Path(path)
    check_path(path)
    if not path.is_file():
        raise PEtabError(f"{path} does not exist or is not a file; give the YAML file of a PEtab problem.")
    if path.stat().st_size > MAX_YAML_BYTES:
        raise PEtabError(f"{path.name} has over {MAX_YAML_BYTES:,} bytes, the most for a list of files.")
    try:
        content = parse_plain_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise PEtabError(f"{path.name} is not YAML: {' '.join(str(error).split())[:200]}.") from None
    version = str(content.get("format_version", "")) if is_json(content) else ""
    if not is_json(content) or version.split(".")[0] not in ("1", "2"):
        raise PEtabError(f"{path.name}: format_version must be 1 or 2, got {version!r:.20}.")
    problem = PEtabReader(path, content).read(int(version.split(".")[0]))
    check_problem(problem)
    return problem


class PEtabReader:
    """Converts the files of a problem to a `Problem`."""

    def __init__(self, path: Path, content: Mapping[str, object]):
        self.path, self.content = path, content
        self.aliases: dict[str, Expression] = {}
        self.places: dict[tuple[str, str], str] = {}
        self.parts = 0

    def read(self, version: int) -> Problem:
        content = self.content if version == 2 else self.only_problem()
        model = read_sbml(self.model_path(content, version))
        for row in self.rows(content, "mapping_files"):
            self.note("entity", row.text("petabEntityId"), row)
            if row.text("modelEntityId", ""):
                self.aliases[row.text("petabEntityId")] = Symbol(row.text("modelEntityId"))
        parameters = {parameter.name: parameter for parameter in self.parameters(version)}
        observables = {
            self.note("observable", row.text("observableId"), row): self.observable(row)
            for row in self.rows(content, "observable_files")
        }
        observables = self.expand(observables)
        rows = [*self.rows(content, "measurement_files")]
        experiments = self.experiments(content) if version == 2 else self.pairs_of_conditions(content, rows)
        measurements = tuple(self.measurement(row, version, observables, experiments) for row in rows)
        used = {measurement.experiment: experiments[measurement.experiment] for measurement in measurements}
        return Problem(self.path, version, model, parameters, observables, used, measurements)

    def note(self, kind: str, name: str, row: Row) -> str:
        """Records which row defines a name, and returns the name.

        **Raises:** `PEtabError` if an earlier row defines it.
        """
        if (kind, name) in self.places:
            before = self.places[kind, name]
            raise PEtabError(f"{row.place}: the {kind} {name!r} is in {before} already; remove or rename one.")
        self.places[kind, name] = row.place
        return name

    # Files

    def only_problem(self) -> Mapping[str, object]:
        problems = self.content.get("problems")
        if not is_list(problems) or len(problems) != 1 or not is_json(only := problems[0]):
            raise PEtabError(f"{self.path.name}: `problems` must be a list of one problem; split it.")
        return only

    def file(self, name: object) -> Path:
        """Returns the path of a file of the problem, which must not lie outside its folder."""
        folder = self.path.parent.resolve()
        if not isinstance(name, str) or "://" in name:
            raise PEtabError(f"{self.path.name}: {name!r:.80} is not the path of a file.")
        check_path(folder / name)
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise PEtabError(f"{self.path.name}: {name!r:.80} lies outside the problem's folder; move it there.")
        if not path.is_file():
            raise PEtabError(f"{self.path.name} names {name!r:.80}, which does not exist.")
        return path

    def model_path(self, content: Mapping[str, object], version: int) -> Path:
        if version == 1:
            files = content.get("sbml_files")
            if not is_list(files) or len(files) != 1:
                raise PEtabError(f"{self.path.name}: `sbml_files` must be a list of one file.")
            return self.file(files[0])
        models = content.get("model_files")
        if not is_json(models) or len(models) != 1:
            raise PEtabError(f"{self.path.name}: `model_files` must have one model; several are not read.")
        entry = next(iter(models.values()))
        language = entry.get("language") if is_json(entry) else None
        if language != "sbml":
            raise PEtabError(f"{self.path.name}: the model's language is {language!r:.20}; only sbml is read.")
        return self.file(entry.get("location"))

    def rows(self, content: Mapping[str, object], key: str) -> Iterator[Row]:
        """Yields the rows of all tables of a kind."""
        given = content.get(key) or list[object]()
        paths = [self.file(name) for name in (given if is_list(given) else [given])]
        for at, path in enumerate(paths):
            if path in paths[:at]:
                raise PEtabError(f"{self.path.name}: `{key}` names {path.name!r:.80} twice; remove one.")
            if path.stat().st_size > MAX_TABLE_BYTES:
                raise PEtabError(f"{path.name} has over {MAX_TABLE_BYTES:,} bytes, the most for a table.")
            with path.open(newline="", encoding="utf-8-sig") as file:
                try:
                    reader = csv.DictReader(file, delimiter="\t")
                    refuse_repeated_columns(reader.fieldnames or (), path.name)
                    for cells in reader:
                        place = f"{path.name}, line {reader.line_num}"
                        if None in cells:
                            raise PEtabError(f"{place}: it has more cells than the first line has columns.")
                        if any((text or "").strip() for text in cells.values()):
                            yield Row({name.strip(): text or "" for name, text in cells.items()}, place)
                except (csv.Error, UnicodeDecodeError) as error:
                    raise PEtabError(f"{path.name} is no table of text between tabs: {error}.") from None

    def rename(self, formula: Expression) -> Expression:
        return substitute(formula, self.aliases) if self.aliases else formula

    # Parameters

    def parameters(self, version: int) -> Iterator[TableParameter]:
        key = "parameter_files" if version == 2 else "parameter_file"
        for row in self.rows(self.content, key):
            scale = row.text("parameterScale", "lin") if version == 1 else "lin"
            if scale not in SCALES:
                raise PEtabError(f"{row.place}: parameterScale must be lin, log or log10, got {scale!r:.20}.")
            estimate = row.text("estimate").lower()
            if estimate not in ("0", "1", "true", "false", "0.0", "1.0"):
                raise PEtabError(f"{row.place}: estimate must be 0, 1, true or false, got {estimate!r:.20}.")
            is_estimated = estimate in ("1", "true", "1.0")
            lower = row.number("lowerBound", None if is_estimated else -math.inf)
            upper = row.number("upperBound", None if is_estimated else math.inf)
            if is_estimated and not lower <= upper:
                raise PEtabError(f"{row.place}: lowerBound {lower:g} is above upperBound {upper:g}.")
            if is_estimated and scale != "lin" and lower <= 0:
                raise PEtabError(f"{row.place}: lowerBound must be positive on the scale {scale}, got {lower:g}.")
            nominal = row.number("nominalValue", math.nan if is_estimated else None)
            prior = prior_of_version_2(row) if version == 2 else prior_of_version_1(row)
            name = self.note("parameter", row.text("parameterId"), row)
            yield TableParameter(name, scale, lower, upper, nominal, is_estimated, prior, row.cells)

    # Observables and measurements

    def observable(self, row: Row) -> Observable:
        name = row.text("observableId")
        formula, noise = self.rename(row.formula("observableFormula")), self.rename(row.formula("noiseFormula"))
        self.count_parts(measure(formula), measure(noise))
        distribution = row.text("noiseDistribution", "normal")
        transformation = row.text("observableTransformation", "lin")
        if distribution not in NOISES:
            raise PEtabError(
                f"{row.place}: noiseDistribution must be one of {', '.join(NOISES)}, got {distribution!r:.20}."
            )
        loss, scale = NOISES[distribution]
        if transformation not in SCALES:
            raise PEtabError(
                f"{row.place}: observableTransformation must be lin, log or log10, got {transformation!r}."
            )
        used = {*symbols(formula), *symbols(noise)}
        placeholders = row.names("observablePlaceholders") or numbered_placeholders(
            f"observableParameter{{}}_{name}", used
        )
        noisy = row.names("noisePlaceholders") or numbered_placeholders(f"noiseParameter{{}}_{name}", used)
        return Observable(name, formula, noise, loss, scale if scale != "lin" else transformation, placeholders, noisy)

    def count_parts(self, *sizes: ExpressionSize) -> None:
        self.parts += sum(size.nodes for size in sizes)
        if self.parts > MAX_NODES_OF_OBSERVABLES:
            raise FormulaError(
                f"{self.path.name}: written out, the observables and their noise have over "
                f"{MAX_NODES_OF_OBSERVABLES:,} parts; write them shorter."
            )

    def expand(self, observables: Mapping[str, Observable]) -> dict[str, Observable]:
        """Replaces the names of other observables in formulas of observables by their formulas."""
        edges = {name: observables.keys() & symbols(observable.formula) for name, observable in observables.items()}
        try:
            order = tuple(TopologicalSorter(edges).static_order())
        except CycleError as error:
            name = error.args[1][0]
            raise FormulaError(f"{self.path.name}: the observable {name!r} refers to itself in a circle.") from None
        # Sizes are checked before replacement; they grow exponentially if observables name their predecessors twice.
        sizes: dict[str, ExpressionSize] = {}
        for name in order:
            sizes[name] = measure(observables[name].formula, sizes)
            refuse_large(sizes[name], f"{self.path.name}: the observable {name!r}")
        noises = {name: measure(observable.noise, sizes) for name, observable in observables.items()}
        for name, size in noises.items():
            refuse_large(size, f"{self.path.name}: the noise of the observable {name!r}")
        self.parts = 0
        self.count_parts(*sizes.values(), *noises.values())
        formulas: dict[str, Expression] = {}
        for name in order:
            formulas[name] = substitute(observables[name].formula, formulas)
        return {
            name: observable._replace(formula=formulas[name], noise=substitute(observable.noise, formulas))
            for name, observable in observables.items()
        }

    def measurement(
        self,
        row: Row,
        version: int,
        observables: Mapping[str, Observable],
        experiments: Mapping[str, tuple[Condition, ...]],
    ) -> Measurement:
        name = row.text("observableId")
        if name not in observables:
            raise PEtabError(f"{row.place}: the observable {name!r} is not in the table of observables.")
        experiment = row.text("experimentId", "") if version == 2 else pair_of_conditions(row)
        if experiment not in experiments:
            raise PEtabError(f"{row.place}: the experiment {experiment!r} is not in the table of experiments.")
        overrides, noisy = row.formulas("observableParameters"), row.formulas("noiseParameters")
        observable = observables[name]
        pairs = ((overrides, observable.placeholders, "observable"), (noisy, observable.noise_placeholders, "noise"))
        for given, needed, kind in pairs:
            if len(given) != len(needed):
                raise PEtabError(
                    f"{row.place}: {kind}Parameters has {len(given)} values for {len(needed)} placeholders of {name!r}."
                )
        time, value = row.number("time"), row.number("measurement")
        if math.isnan(time) or time == -math.inf:
            raise PEtabError(f"{row.place}: time must be a number or inf, got {time}.")
        return Measurement(name, experiment, time, value, overrides, noisy, row.cells)

    # Conditions

    def experiments(self, content: Mapping[str, object]) -> dict[str, tuple[Condition, ...]]:
        conditions: dict[str, dict[str, Expression]] = {}
        for row in self.rows(content, "condition_files"):
            target = self.rename(Symbol(row.text("targetId")))
            assert isinstance(target, Symbol)
            name = row.text("conditionId")
            self.note(f"target of the condition {name!r},", target.name, row)
            conditions.setdefault(name, {})[target.name] = self.rename(row.formula("targetValue"))
        times_by_name: dict[str, dict[float, dict[str, Expression]]] = {}
        for row in self.rows(content, "experiment_files"):
            condition = row.text("conditionId", "")
            if condition and condition not in conditions:
                raise PEtabError(f"{row.place}: the condition {condition!r} is not in the table of conditions.")
            name, time = row.text("experimentId"), row.number("time")
            if math.isnan(time):
                raise PEtabError(f"{row.place}: time must be a number or -inf, got nan.")
            for target in conditions.get(condition, {}):
                self.note(f"change at the time {time:g} of the experiment {name!r} of", target, row)
            times_by_name.setdefault(name, {}).setdefault(time, {}).update(conditions.get(condition, {}))
        experiments = {
            name: tuple(Condition(time, changes) for time, changes in sorted(times.items()))
            for name, times in times_by_name.items()
        }
        for name, periods in experiments.items():
            if periods[-1].time == -math.inf:  # Measurements are taken at the equilibrium.
                experiments[name] = (*periods, Condition(0.0, {}))
        return {"": (Condition(0.0, {}),), **experiments}

    def pairs_of_conditions(
        self, content: Mapping[str, object], measurements: list[Row]
    ) -> dict[str, tuple[Condition, ...]]:
        """Returns the experiments of version 1: a condition, optionally after an equilibrium under another one."""
        conditions: dict[str, dict[str, Expression]] = {}
        for row in self.rows(content, "condition_files"):
            cells = {name: text for name, text in row.cells.items() if name not in ("conditionId", "conditionName")}
            conditions[self.note("condition", row.text("conditionId"), row)] = {
                name: self.rename(row.formula(name))
                for name, text in cells.items()
                if text.strip() and text.strip().lower() != "nan"
            }
        experiments: dict[str, tuple[Condition, ...]] = {}
        for row in measurements:
            before, during = row.text("preequilibrationConditionId", ""), row.text("simulationConditionId")
            unknown = next((name for name in (before, during) if name and name not in conditions), None)
            if unknown is not None:
                raise PEtabError(f"{row.place}: the condition {unknown!r} is not in the table of conditions.")
            first = (Condition(-math.inf, conditions[before]),) if before else ()
            experiments[pair_of_conditions(row)] = (*first, Condition(0.0, conditions[during]))
        return experiments


def refuse_repeated_columns(names: Sequence[str], file: str) -> None:
    known: set[str] = set()
    for name in map(str.strip, names):
        if name in known:
            raise PEtabError(f"{file}, line 1: the column {name!r:.80} is given twice; remove or rename one.")
        known.add(name)


def pair_of_conditions(row: Row) -> str:
    before = row.text("preequilibrationConditionId", "")
    return f"{before} -> {row.text('simulationConditionId')}" if before else row.text("simulationConditionId")


def numbered_placeholders(pattern: str, used: set[str]) -> tuple[str, ...]:
    """Returns the used placeholders of a pattern, numbered from 1."""
    names: list[str] = []
    while pattern.format(len(names) + 1) in used:
        names.append(pattern.format(len(names) + 1))
    return tuple(names)


def prior_of_version_1(row: Row) -> Prior | None:
    prior_type = row.text("objectivePriorType", "")
    if not prior_type:
        return None
    is_on_scale = prior_type.startswith(ON_SCALE)
    name = prior_type.removeprefix(ON_SCALE).lower() if is_on_scale else PRIORS_OF_VERSION_1.get(prior_type, prior_type)
    return checked_prior(row, name, "objectivePriorParameters", is_on_scale, is_truncated=False)


def prior_of_version_2(row: Row) -> Prior | None:
    if row.text("estimate").lower() not in ("true", "1"):
        return None
    name = row.text("priorDistribution", "")
    if not name:
        return Prior("uniform", (row.number("lowerBound"), row.number("upperBound")), False, False)
    return checked_prior(row, name, "priorParameters", False, is_truncated=True)


def checked_prior(row: Row, name: str, column: str, is_on_scale: bool, is_truncated: bool) -> Prior:
    if name not in PRIORS:
        raise PEtabError(f"{row.place}: the prior must be one of {', '.join(PRIORS)}, got {name!r:.30}.")
    try:
        numbers = tuple(parse_number(text) for text in row.text(column).split(";"))
    except ValueError:
        raise PEtabError(f"{row.place}, column {column!r}: {row.text(column)!r:.60} is not numbers.") from None
    if len(numbers) != PRIORS[name]:
        raise PEtabError(f"{row.place}, column {column!r}: {name} takes {PRIORS[name]} numbers, not {len(numbers)}.")
    return Prior(name, numbers, is_on_scale, is_truncated)


def check_problem(problem: Problem) -> None:
    """Refuses names that nothing defines, targets that rules compute, and quantities without a value."""
    model, file = problem.model, problem.path.name
    targets = {name for periods in problem.experiments.values() for condition in periods for name in condition.changes}
    ruled = next((name for name in sorted(targets) if name in model.rules or name in model.reactions), None)
    if ruled is not None:
        raise PEtabError(f"{file}: a condition sets {ruled!r}, which a rule or a reaction of the model computes.")
    known = model.names() | problem.parameters.keys() | targets
    for observable in problem.observables.values():
        own = {*observable.placeholders, *observable.noise_placeholders, *problem.observables}
        for formula in (observable.formula, observable.noise):
            refuse_unknown(formula, known | own, f"{file}: the observable {observable.name!r}")
    for name, periods in problem.experiments.items():
        for period in periods:
            for formula in period.changes.values():
                refuse_unknown(formula, known, f"{file}: the experiment {name!r}")
    for measurement in problem.measurements:
        for formula in (*measurement.overrides, *measurement.noise_overrides):
            refuse_unknown(formula, known, f"{file}: a measurement of {measurement.observable!r}")
    if not problem.measurements:
        raise PEtabError(f"{file} has no measurements.")
    refuse_useless_noise(problem, targets)


def refuse_useless_noise(problem: Problem, targets: Collection[str]) -> None:
    """Refuses noise whose scale is a fixed number that is not positive, which has no likelihood."""
    fixed: dict[str, Value] = {
        name: parameter.nominal
        for name, parameter in problem.parameters.items()
        if not parameter.is_estimated and name not in targets
    }
    for observable, overrides in dict.fromkeys(
        (measurement.observable, measurement.noise_overrides) for measurement in problem.measurements
    ):
        placeholders = problem.observables[observable].noise_placeholders
        noise = substitute(problem.observables[observable].noise, dict(zip(placeholders, overrides, strict=True)))
        if not fixed.keys() >= set(symbols(noise)):
            continue
        with jax.enable_x64(True):
            scale = float(as_float(evaluate(noise, fixed)))
        if not 0 < scale < math.inf:
            raise PEtabError(
                f"{problem.path.name}: the noise of the observable {observable!r} is {scale:g}; its noiseFormula must "
                "be positive and finite, for a measurement without noise has no likelihood."
            )


def refuse_unknown(formula: Expression, known: set[str] | frozenset[str], owner: str) -> None:
    unknown = next((name for name in symbols(formula) if name not in known), None)
    if unknown is not None:
        raise PEtabError(f"{owner} names {unknown!r}, which neither the model nor the table of parameters defines.")


def observation_parameters(problem: Problem) -> frozenset[str]:
    """Returns the estimated parameters of observables and noise alone: scales, offsets, standard deviations."""
    model = problem.model
    changes = [period.changes for periods in problem.experiments.values() for period in periods]
    used = {name for _, formula in model.formulas() for name in symbols(formula)}
    used |= {
        name for condition_changes in changes for formula in condition_changes.values() for name in symbols(formula)
    }
    used |= {name for condition_changes in changes for name in condition_changes} | {
        *model.rates,
        *model.rules,
        *model.containers.values(),
    }
    return frozenset(
        name for name, parameter in problem.parameters.items() if parameter.is_estimated and name not in used
    )
