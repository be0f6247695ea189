"""Checks the keys of a config and builds its objects; the constructors named in the config are its only schema."""

import functools
import os
import re
import textwrap
import types
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin

import jax
import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException, BeartypeWarning
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf import errors as omegaconf

from ...data.dataset import Split, Splits
from ...data.phases import cycle_names
from ...data.table_source import Table
from ...data.tables.reading import ESTIMATE
from ...likelihood.losses import AbstractLikelihood
from ...model.fields.equations import EquationError, Equations, locate_error, read_equation_lines
from ...model.fields.known import Known
from ...model.make_model import is_equations_alone, trait_of
from ...options.options import LARGEST_SEED, TIGHT, Devices, Options, Training, with_tolerance
from ...runtime.placement import Placement
from ...runtime.serialization import is_json, is_list, parse_number
from ...runtime.validation import (
    HINT_WORDS,
    LISTS,
    describe_hint,
    is_array_class,
    is_list_or_tuple,
    is_mapping,
    members,
)
from ...solver.solver import Solver
from ...training.callback import LOGGERS, import_extra
from .composition import (
    ALLOWED,
    ConfigError,
    check_group_names,
    closest,
    constructor_hints,
    explain,
    find_renamed,
    known_keys,
    locate,
    nearest_name,
    parameters_of,
    was_renamed,
)

TARGETS_OF_PROBLEMS = ("node_fit.PEtab", "node_fit.SBML")
# Words of a config file for types.
YAML = HINT_WORDS | {type(None): "null"} | dict.fromkeys((bool, np.bool), "true or false")
# Groups of the config that name a constructor.
CONFIG_PARTS = (
    "data",
    "field",
    "start",
    "observation",
    "solver",
    "optimizer",
    "recipe",
    "penalty",
    "loss",
    "training",
    "ensemble",
)


@dataclass(frozen=True)
class Call:
    """A checked constructor call that has not been executed yet."""

    key: str
    target: Callable[..., object]
    arguments: dict[str, object]
    partial: bool


class Deferred(functools.partial[object]):
    """A constructor with some arguments bound (`_partial_: true`), whose errors name its config key."""

    key: str

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        with errors_of_key(self.key, self.func):
            return super().__call__(*args, **kwargs)


# Advice for keys without a value, other than to set the key.
WITHOUT_VALUE = {
    "data.states": "name columns, data.states=[x,y], or name the file alone, python -m node_fit mine.csv: its first "
    "column is then the time, and the others are states"
}


def build(node: object, key: str, *, extensions: Sequence[str] = ()) -> Any:
    """Builds the object that a config node describes.

    All targets, names and plain values in the node are checked before the first constructor runs.

    **Arguments:**

    - `node`: an OmegaConf node, or dicts, lists and plain values. A dict with `_target_`, the dotted name of a public
      class or function, stands for the result of calling it; with `_partial_: true`, for a `functools.partial` of it.
    - `key`: the node's full key in the config, for errors.
    - `extensions`: packages besides `node_fit`, `diffrax` and `optax` that can hold targets. They are imported, which
      runs their code.

    **Returns:** the result of the target. Nested targets are built first. Constructors get plain Python: a list becomes
    a tuple if the hint is a tuple or a `Sequence`; an integer or the string "1e-3" becomes a float if the hint is one.

    **Raises:** `ConfigError`, also in place of a constructor's `ValueError`.
    """
    return execute(make_plan(node, key, (*ALLOWED, *check_value(to_plain(extensions), tuple[str, ...], "extensions"))))


def make_plan(node: object, key: str, allowed: Sequence[str]) -> object:
    """Converts `node` to plain Python, with each target as a checked `Call`."""
    node = to_plain(node)
    if isinstance(node, str) and node == "???":
        raise ConfigError(f"{key} has no value; {WITHOUT_VALUE.get(key, f'set it with {key}=VALUE')}")
    if is_list_or_tuple(node):
        return [make_plan(item, f"{key}[{index}]", allowed) for index, item in enumerate(node)]
    if not is_json(node):
        return node
    target = locate(node["_target_"], f"{key}._target_", allowed) if "_target_" in node else None
    named = {name: value for name, value in node.items() if name not in ("_target_", "_partial_")}
    partial = check_value(node.get("_partial_", False), bool, f"{key}._partial_")
    if target is not None:
        check_group_names(named, target, key, partial)
    values = {name: make_plan(value, f"{key}.{name}", allowed) for name, value in named.items()}
    if target is None:
        return values
    hints = constructor_hints(target)
    for name, value in values.items():
        if not holds_call(value):
            values[name] = check_value(value, hints.get(name, object), f"{key}.{name}")
    return Call(key, target, values, partial)


def execute(plan: object) -> object:
    """Executes the calls of a plan and returns its object."""
    if is_list_or_tuple(plan):
        return type(plan)(execute(item) for item in plan)
    if is_json(plan):
        return {name: execute(item) for name, item in plan.items()}
    if not isinstance(plan, Call):
        return plan
    key, target, arguments = plan.key, plan.target, dict(plan.arguments)
    for name, value in arguments.items():
        if holds_call(value):
            arguments[name] = check_value(execute(value), constructor_hints(target).get(name, object), f"{key}.{name}")
    if plan.partial:
        deferred = Deferred(target, **arguments)
        deferred.key = key
        return deferred
    with errors_of_key(key, target):
        return target(**arguments)


def to_plain(node: object) -> Any:
    try:
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except omegaconf.OmegaConfBaseException as error:
        raise ConfigError(explain(error) or str(error)) from error


def holds_call(plan: object) -> bool:
    children = plan.values() if is_json(plan) else plan if is_list_or_tuple(plan) else ()
    return isinstance(plan, Call) or any(holds_call(child) for child in children)


@contextmanager
def errors_of_key(key: str, target: Callable[..., object]) -> Generator[None]:
    """Prefixes a constructor's `ValueError` with `key`, joined to the argument's name if the text starts with one."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        text = re.sub(r"^`(\w+)`", r"\1", str(error))
        named = re.split(r"\W", text, maxsplit=1)[0] in parameters_of(target)
        raise ConfigError(f"{key}{'.' if named else ': '}{text}") from error


# Values.


def check_value(value: object, hint: object, key: str) -> Any:
    """Converts `value` to the type of the hint, or raises a `ConfigError` that names the key."""
    try:
        return convert(value, hint)
    except (ValueError, OverflowError):
        hints = members(hint)
        choices = [str(choice) for member in hints if get_origin(member) is Literal for choice in get_args(member)]
        group, _, name = key.rpartition(".")
        word = WORDS.get(group, {}).get(name)
        choices += [] if word is None else [word]
        type_words = YAML if word is None else YAML | {type(None): word}
        fix = ""
        if isinstance(value, str) and closest(value, choices):
            fix = f"; {nearest_name(value, choices)}"
        elif isinstance(value, str) and any(get_origin(member) in LISTS for member in hints):
            fix = f"; write [{value}]"
        elif isinstance(value, float) and value.is_integer() and int in hints:
            fix = f"; write {value:.0f}"
        shown = textwrap.shorten(repr(value), 80)
        raise ConfigError(f"{key} must be {describe_hint(hint, type_words)}, got {shown}{fix}") from None


def convert(value: object, hint: Any) -> object:
    """Converts `value` to the type of the hint, or raises a `ValueError`."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    flag, text = isinstance(value, bool), isinstance(value, str)
    if kind in (Union, types.UnionType):
        return convert_to_one(value, inner)
    if kind is float and isinstance(value, (int, float, str)) and not flag:
        return parse_number(value) if isinstance(value, str) else float(value)  # YAML 1.1 reads 1e-3 as a string.
    if kind in LISTS and is_list_or_tuple(value):
        return convert_list(value, kind, inner)
    if kind is Literal:
        fits = any(type(choice) is type(value) and choice == value for choice in inner)
    elif is_array_class(kind):
        lists = () if getattr(kind, "dims", None) == () else (list,)
        # Types that convert to arrays.
        fits = not flag and any(isinstance(value, accepted) for accepted in (int, float, jax.Array, np.ndarray, *lists))
    elif (flag and kind in (int, float, complex)) or (text and kind in LISTS):
        fits = False  # In Python, a bool is an int and a str is a sequence.
    else:
        try:
            with warnings.catch_warnings(action="ignore", category=BeartypeWarning):  # Old hints: `typing.Dict`.
                fits = is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
        except BeartypeException:
            fits = True
    if not fits:
        raise ValueError
    return value


def convert_to_one(value: object, hints: Sequence[object]) -> object:
    """Converts `value` to the first hint that accepts it; a string becomes a number only if no hint takes strings."""
    for hint in sorted(hints, key=lambda hint: hint is float and isinstance(value, str)):
        try:
            return convert(value, hint)
        except (ValueError, OverflowError):
            continue
    raise ValueError


def convert_list(values: Sequence[object], kind: object, inner: tuple[object, ...]) -> Sequence[object]:
    many = kind is not tuple or not inner or inner[-1] is Ellipsis
    hints = [inner[0] if inner else object] * len(values) if many else inner
    items = [convert(value, hint) for value, hint in zip(values, hints, strict=True)]
    return items if kind is list else tuple(items)


# Words of the config for a constructor's None, by group and key: `auto` chooses a value, `all` means no limit.
# Configs of earlier versions have null instead.
WORDS = {
    "training": {"steps": "auto", "stride": "auto", "batch_size": "all", "chunk_steps": "auto"},
    "solver": {"rtol": "auto", "atol": "auto", "stepping": "auto"},
    "prediction_solver": {"rtol": "auto", "atol": "auto"},
    "field": {"width": "auto", "depth": "auto", "linear": "auto", "rest": "auto", "sees": "all"},
    "start": {"given": "all", "before": "auto"},
    "device": {"count": "all"},
    "ensemble": {"size": "auto"},
}


class Parts(NamedTuple):
    """The objects of a config: the source of the data, and the fit's options."""

    data: Table
    options: Options

    def load_with_notes(self) -> tuple[Splits, list[str]]:
        """As `Table.load_with_notes`; for equations alone, all rows are fitted unless the split is set."""
        if not is_equations_alone(self.options.field) or trait_of(self.options.field, "is_sought", False):
            return self.data.load_with_notes()
        splits, notes = replace(self.data, split=self.data.split.with_shares(0.0)).load_with_notes()
        return splits, notes + notes_of_equations(self.data, splits, self.options)


def build_parts(config: DictConfig) -> Parts:
    """Builds the objects of a config.

    **Raises:** `ConfigError` with the key of the object that can't be built.
    """
    nodes = {key: config[key] for key in CONFIG_PARTS} | {"start": start_of(config)}
    nodes = {key: without_words(node, key) for key, node in nodes.items()}
    parts = {key: build(node, key, extensions=list(config.extensions)) for key, node in nodes.items()}
    data = parts.pop("data")
    options = Options(
        **parts,
        hidden=hidden_states(config),
        prediction_solver=prediction_solver(config, parts["solver"]),
        scaling=data.scaling,
        precision=config.precision,
        device=Devices(**{key: without_words(config.device, "device")[key] for key in ("kind", "count")}),
        restarts=config.restarts,
        derived=derived_quantities(config),
        seed=config.seed,
        effort=config.effort,
        discover=config.discover,
    )
    check_scaling(data, options)
    return Parts(data, options)


def without_words(node: Any, group: str) -> Any:
    """Replaces the words of a config group, such as `auto`, by None."""
    words = WORDS.get(group)
    plain = to_plain(node) if words else None
    if not words or not is_json(plain):
        return node
    return {key: None if value == words.get(key) else value for key, value in plain.items()}


def start_of(config: DictConfig) -> object:
    """Returns the config's rule for initial states. Keys without a rule's name apply to the default rule.

    The default is `start=fitted` for equations alone, else `start=first`.

    **Raises:** `ConfigError` if a key belongs to another rule.
    """
    start = config.start
    if not OmegaConf.is_dict(start) or "_target_" in start:
        return start
    for key in start:
        if key != "absent":
            raise ConfigError(f"start.{key} needs the name of a rule; write it before, such as start=encoder.")
    target = str(OmegaConf.select(config, "field._target_", default=""))
    if target == f"node_fit.{Known.__name__}":
        return {"_target_": "node_fit.Fitted", "_partial_": True, "given": None, "absent": start.absent}
    return {"_target_": "node_fit.First", "_partial_": True, "absent": start.absent}


def read_equation_file(config: DictConfig) -> None:
    """Replaces the path of an equation file by its content, so that the run's config needs no other file.

    **Raises:** `ConfigError` with the file and the invalid line.
    """
    field = config.get("field")
    if not OmegaConf.is_dict(field) or OmegaConf.is_missing(field, "equations"):
        return
    path = field.get("equations")
    if isinstance(path, str):
        try:
            texts = read_equation_lines(path)
        except (ValueError, OSError) as error:
            raise ConfigError(re.sub("^equations:", "field.equations:", str(error))) from None
        with open_dict(field):
            field.equations = dict(texts)
        check_equations(config, texts)


# Fields whose equations name constants.
WITH_EQUATIONS = ("node_fit.Known", "node_fit.Hybrid")


def add_random_constants(config: DictConfig) -> None:
    """Sets the initial value of constants in `random` to 1 if the config gives no value."""
    random, field = to_plain(config.get("random")), config.get("field")
    if not random or not OmegaConf.is_dict(field) or field.get("_target_") not in WITH_EQUATIONS:
        return
    groups = [to_plain(OmegaConf.select(config, f"{part}.constants")) for part in ("field", "start", "observation")]
    valued = {name for group in groups if is_mapping(group) for name in group}
    texts = to_plain(field.get("equations"))
    if not is_mapping(texts):
        return
    with suppress(ValueError):  # `check_equations` reports invalid equations.
        used = Equations.of(texts).names_used()
        with open_dict(field):
            field.constants = {
                **(to_plain(field.get("constants")) or {}),
                **{
                    name: 1.0
                    for name in as_list(random)
                    if isinstance(name, str) and name in used and name not in valued
                },
            }


def check_equations(config: DictConfig, texts: Mapping[Any, object] | None = None) -> None:
    """Rejects known equations that can't be parsed, or use a name that is not in the config.

    **Arguments:** `texts`: the equations if they come from a file.
    """
    field, data = to_plain(config.get("field")), to_plain(config.get("data"))
    if not is_json(field) or field.get("_target_") not in WITH_EQUATIONS:
        return
    texts = field.get("equations") if texts is None else texts
    if not is_mapping(texts) or not is_json(data):
        return  # Missing or invalid values are reported with those of the other keys.
    with errors_of_key("field", Known):
        equations = Equations.of(texts)
        named: list[object] = [data.get(key) for key in ("time", "states", "inputs", "covariates")]
        named += [field.get("constants"), field.get("terms"), ["t"], list(texts)]
        named.append(cycle_names([str(cycle) for cycle in as_list(data.get("cycles", []))]))
        available = {name for names in named for name in as_list(names) if isinstance(name, str)}
        try:
            equations.check(available)
        except EquationError as error:
            raise locate_error(error, texts) from None


def as_list(names: object) -> list[object]:
    """Returns the names in a list, a mapping or a single string."""
    return list(names) if is_list(names) or is_json(names) else [names]


def notes_of_equations(data: Table, splits: Splits, options: Options) -> list[str]:
    """Returns notes on the rows that equations alone are fitted to, and on unspecified noise."""
    notes: list[str] = []
    assert isinstance(options.loss, AbstractLikelihood)
    if len(splits.named()) == 1:
        notes.append(
            "all rows are fitted, since few constants need no data held out; data.split.test=0.2 holds a fifth out."
        )
    if data.sigma == ESTIMATE and not (data.censored or options.loss.is_count or options.loss.shapes):
        notes.append(
            "data.sigma is not given: all values of a state weigh the same, and the noise is taken from the residuals. "
            f"With it, such as 'data.sigma={{{data.states[0]}: {{relative: 0.1, absolute: 0.01}}}}', precise "
            "values weigh more, and chi2 says whether the equations fit."
        )
    return notes


def check_scaling(data: Table, options: Options) -> None:
    """Rejects logarithms, bounds or angles for names that are neither states nor inputs."""
    hidden = () if isinstance(options.hidden, int | str) else options.hidden
    with errors_of_key("data", Table):
        data.scaling.limits((*data.states, *hidden), (*data.inputs, *(data.covariates or ())))


# Config keys of the arguments of a table and of its split.
KNOWN_KEYS = {name: f"data.split.{name}" for name in parameters_of(Split)} | {
    name: f"data.{name}" for name in parameters_of(Table)
}


@contextmanager
def errors_of_data() -> Generator[None]:
    """Replaces argument names by config keys in a `ValueError` about the data: `step=1` becomes `data.step=1`."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        text = re.sub(r"(?<![\w.'/])(\w+)(?==)", lambda match: KNOWN_KEYS.get(match[1], match[1]), str(error))
        first = re.split(r"\W", text, maxsplit=1)[0]
        raise ConfigError(KNOWN_KEYS.get(first, first) + text[len(first) :]) from error


@contextmanager
def errors_of_training() -> Generator[None]:
    """Prefixes a `ValueError` about an argument of `Training` with `training.`; some errors only occur during a fit."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        if re.split(r"\W", str(error), maxsplit=1)[0] not in parameters_of(Training):
            raise
        raise ConfigError(f"training.{error}") from error


def prediction_solver(config: DictConfig, solver: Solver) -> Solver | None:
    """Builds the solver for predictions with the config's tolerances; None if they are not set."""
    chosen = build(without_words(config.prediction_solver, "prediction_solver"), "prediction_solver")
    if chosen["rtol"] is None and chosen["atol"] is None:
        return None
    rtol = chosen["rtol"] or TIGHT[config.precision]
    return replace(with_tolerance(solver, rtol), atol=chosen["atol"] or rtol / 100)


def hidden_states(config: DictConfig) -> int | str | list[str]:
    """Returns the config's `hidden`, a number or names.

    **Raises:** `ConfigError` if it is neither.
    """
    hidden = OmegaConf.to_container(config.hidden) if OmegaConf.is_config(config.hidden) else config.hidden
    if hidden == "auto":
        return "auto"
    if isinstance(hidden, int) and not isinstance(hidden, bool):
        return hidden
    if is_list(hidden) and len(names := [name for name in hidden if isinstance(name, str)]) == len(hidden):
        return names
    raise ConfigError(f"hidden must be auto, a number of states or a list of their names, got {hidden!r}.")


def derived_quantities(config: DictConfig) -> dict[str, Any]:
    """Returns the config's `derived`, expressions by name.

    **Raises:** `ConfigError` if it is anything else.
    """
    derived = OmegaConf.to_container(config.derived) if OmegaConf.is_config(config.derived) else config.derived
    if not isinstance(derived, dict):
        raise ConfigError(
            f"derived must be expressions by their names, such as {{half_life: log(2)/k}}, got {derived!r}."
        )
    return cast(dict[str, Any], derived)


def placement_of(config: DictConfig) -> Placement:
    """Returns the precision and devices of the config's run.

    **Raises:** `ValueError` if the devices do not exist.
    """
    device = config.device
    if OmegaConf.is_config(device):
        count = None if device.count == WORDS["device"]["count"] else device.count
        cores = (os.cpu_count() or 1) if count == "auto" else count
        if isinstance(cores, int) and cores > 1 and device.kind != "gpu":
            with suppress(RuntimeError):  # JAX is already initialised, and its devices are fixed.
                jax.config.update("jax_num_cpu_devices", cores // (OmegaConf.select(device, "processes") or 1))
        if count is None or count == "auto" or (isinstance(count, int) and not isinstance(count, bool)):
            placement = Placement(config.precision, device.kind, 1 if count == "auto" else count)
            _ = placement.devices
            return placement
        raise ConfigError(f"device.count must be auto, all or an integer, got {count!r}.")
    raise ConfigError(f"device is a group of keys; choose device=auto, cpu or gpu on the command line, got {device!r}.")


def check_top(config: DictConfig) -> None:
    """Rejects unused keys, and top-level keys that are null or have the wrong type or value."""
    check_known_keys(config)
    for key in (*CONFIG_PARTS, "prediction_solver", "evaluation", "device"):
        if OmegaConf.select(config, key) is None:
            raise ConfigError(f"{key} must not be null; leave it out for its default.")
    for key, choices in (
        ("precision", ("x32", "x64")),
        ("resume_from", ("latest", "best")),
        ("sweep", ("auto", "serial", "vectorized")),
        ("confidence", ("fisher", "profile", "none")),
    ):
        if config[key] not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {config[key]!r}.")
    if not isinstance(config.report, bool):
        raise ConfigError(f"report must be true or false, got {config.report!r}.")
    trajectories_to_plot(config)
    check_loggers(config.logger)
    if config.compile_cache is not False and not isinstance(config.compile_cache, str):
        raise ConfigError(f"compile_cache must be auto, false or a folder, got {config.compile_cache!r}.")
    window = OmegaConf.select(config, "evaluation.window")
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 2):
        raise ConfigError(f"evaluation.window must be null or an integer of at least 2, got {window!r}.")
    seed = config.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"seed must be an integer from 0 to {LARGEST_SEED}, got {seed!r}.")


def trajectories_to_plot(config: DictConfig) -> list[str] | None:
    """Returns the names of trajectories to plot; None for the best, the median and the worst."""
    names = config.plot
    if names == "auto":
        return None
    if not OmegaConf.is_list(names) or not names:
        raise ConfigError(f"plot must be auto or a list of trajectories, such as plot=[A3,B1], got {names!r}.")
    return [str(name) for name in names]


def check_loggers(names: object) -> None:
    """Rejects loggers that do not exist, or whose package is not installed."""
    for name in names_of_loggers(names):
        if name not in LOGGERS:
            raise ConfigError(
                f"logger must be a list of {', '.join(LOGGERS)}, got {name!r}; {nearest_name(name, LOGGERS)}"
            )
        import_extra(LOGGERS[name].package, LOGGERS[name].extra)


def names_of_loggers(given: object) -> list[Any]:
    """Returns the config's `logger` as a list; it can be a single name."""
    if isinstance(given, ListConfig):
        return list(given)
    return [] if given is None or given is False else [given]


def check_known_keys(config: DictConfig) -> None:
    """Rejects keys that no constructor or command reads and no other key refers to."""
    text = OmegaConf.to_yaml(config)
    for group, allowed_keys in known_keys().items():
        node = OmegaConf.select(config, group) if group else config
        for key in node if OmegaConf.is_dict(node) else ():
            if key not in allowed_keys and not re.search(rf"\$\{{[^}}]*\b{re.escape(str(key))}\b", text):
                prefix = group and f"{group}."
                if was_renamed(f"{prefix}{key}"):
                    raise ConfigError(find_renamed(f"{prefix}{key}"))
                raise ConfigError(f"{prefix}{key} is not a config key; {nearest_name(key, allowed_keys, prefix)}")


def is_petab(config: DictConfig) -> bool:
    """Whether a config's data are a PEtab problem, or an SBML model with a table."""
    return config.data is not None and config.data.get("_target_") in TARGETS_OF_PROBLEMS


def is_population(config: DictConfig) -> bool:
    """Whether a config has constants that vary between subjects."""
    return bool(config.get("random"))
