"""Looks up the shipped options, keys and targets of a composed config, and explains Hydra's errors in one sentence.

A stored config can be untrusted, so nothing in it is resolved or called.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf import errors as omegaconf

from ...runtime.serialization import Json, check_yaml, is_json, is_list

# Callbacks of Hydra that conf/config.yaml names.
CALLBACKS = ("node_fit.app.leaderboard.Leaderboard", "node_fit.app.vectorized.Vectorized")
# Packages with Hydra's launchers and sweepers.
PLUGINS = ("hydra_plugins", "hydra._internal.core_plugins", "optuna.samplers")
# Modules whose public classes are constructors; optax's functions make transformations and schedules.
MODULES = (
    "node_fit",
    "diffrax",
    "optax",
    "optax.contrib",
    "optax.losses",
    "optax.perturbations",
    "optax.projections",
    "optax.schedules",
    "optax.transforms",
)
ALLOWED = tuple(dict.fromkeys(name.partition(".")[0] for name in MODULES))
PACKAGE = Path(__file__).parents[2]


class ConfigError(ValueError):
    """Raised for a config that can't be built. The message is one sentence with the full key, the rule and the fix."""

    def __init__(self, text: str):
        super().__init__(one_line(text))


def locate(path: object, key: str, allowed: Sequence[str]) -> Callable[..., object]:
    """Looks up a public constructor, or a class or function of a user's package, by its dotted name."""
    package = next((name for name in allowed if isinstance(path, str) and path.startswith(f"{name}.")), None)
    if package is None or not isinstance(path, str):
        prefixes = ", ".join(f"{name}." for name in allowed)
        raise ConfigError(f"{key} must start with {prefixes} or a package named in extensions=[...], got {path!r}")
    if package not in ALLOWED:
        return find_definition(package, path, key)
    module, _, name = path.rpartition(".")
    if module in MODULES and (constructor := find_constructor(module, name)) is not None:
        return constructor
    names = [name for name in constructors() if name.startswith(f"{package}.")]
    raise ConfigError(f"{key} must be a public constructor of {package}, got {path!r}; {nearest_name(path, names)}")


@functools.cache
def find_constructor(module: str, name: str) -> Callable[..., object] | None:
    """Returns the constructor of this name that a config can call without extensions, or None.

    Looks up this name alone, since listing all names would import the whole package and scikit-learn.
    """
    home, package = importlib.import_module(module), module.partition(".")[0]
    if name.startswith("_") or name not in getattr(home, "__all__", dir(home)):
        return None
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of names that are not used
        target = getattr(home, name)
    # Libraries also expose names imported from others.
    defined = getattr(getattr(target, "func", target), "__module__", None)
    return target if is_constructor(target, package) and is_in(defined, package) else None


@functools.cache
def constructors() -> dict[str, Callable[..., object]]:
    """Returns all constructors that a config can call without extensions, by dotted name."""
    targets: dict[str, Callable[..., object]] = {}
    for module in MODULES:
        home = importlib.import_module(module)
        for name in getattr(home, "__all__", dir(home)):
            if (target := find_constructor(module, name)) is not None:
                targets[f"{module}.{name}"] = target
    return targets


def is_constructor(target: object, package: str) -> bool:
    # Optax has variants, such as nadam, that are other optimizers with some arguments.
    is_factory = package == "optax" and inspect.isfunction(getattr(target, "func", target))
    return is_factory or (inspect.isclass(target) and not inspect.isabstract(target))


def is_in(module: str | None, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def find_definition(package: str, path: str, key: str) -> Callable[..., object]:
    """Looks up a class or function that a user's package defines under a public name."""
    make_importable()
    target = import_target(package, key)
    for name in path[len(package) + 1 :].split("."):
        if not name.isidentifier() or name.startswith("_"):
            raise ConfigError(f"{key} must be a dotted name with only public parts, got {path!r}")
        target = find_member(target, name, path, key)
        # A package also exposes modules that it imports; these do not count.
        home = target.__name__ if inspect.ismodule(target) else getattr(target, "__module__", None)
        if not is_in(home, package) and not any(target is allowed for allowed in constructors().values()):
            raise ConfigError(f"{key} must be defined in {package}, but {path!r} leaves it")
    if not (inspect.isclass(target) or inspect.isfunction(target)) or inspect.isabstract(target):
        raise ConfigError(f"{key} must name a function, or a class that is not abstract, but {path!r} is neither")
    return target


def make_importable() -> None:
    """Makes modules in the current folder importable as extensions, as `python -m` does but a script does not."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def find_member(owner: Any, name: str, path: str, key: str) -> object:
    if hasattr(owner, name):
        return getattr(owner, name)
    if hasattr(owner, "__path__") and importlib.util.find_spec(f"{owner.__name__}.{name}"):
        return import_target(f"{owner.__name__}.{name}", key)
    names = [member for member in dir(owner) if not member.startswith("_")]
    raise ConfigError(f"{key}: {path!r} does not exist; {nearest_name(name, names, f'{owner.__name__}.')}")


def import_target(name: str, key: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} can't be imported, {type(error).__name__}: {error}") from error


def check_hydra(config: DictConfig) -> None:
    """Rejects unknown targets in Hydra's config node, which Hydra calls before a job starts.

    **Raises:** `ConfigError` unless they are node_fit's own callbacks, Hydra's plugins, or defined by extensions.
    """
    named = config.get("extensions")
    # An invalid list is rejected with the other keys.
    extensions = [name for name in named if isinstance(name, str)] if is_plain_or_config_list(named) else []
    for key, target in targets_in(OmegaConf.to_container(config.hydra), "hydra"):
        name = target if isinstance(target, str) else None
        plugin = key.startswith(("hydra.launcher.", "hydra.sweeper.")) and any(is_in(name, home) for home in PLUGINS)
        if not (plugin or target in CALLBACKS or any(is_in(name, home) for home in extensions)):
            raise ConfigError(
                f"{key} must be one of {', '.join(CALLBACKS)}, a plugin of Hydra, or defined in a package named in "
                f"extensions=[...], got {target!r}"
            )


def is_plain_or_config_list(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, list | tuple | ListConfig)


def targets_in(node: object, key: str) -> Iterator[tuple[str, object]]:
    """Yields the targets in a node of plain Python values, with their keys."""
    children = node.items() if is_json(node) else enumerate(node) if is_list(node) else ()
    for name, child in children:
        if name == "_target_":
            yield f"{key}.{name}", child
        else:
            yield from targets_in(child, f"{key}.{name}")


def parameters_of(target: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Returns the parameters that can be passed by name."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception:  # A quoted hint can need a type-checking import; it stays a string and is not checked.
        signature = inspect.signature(target)
    return {n: p for n, p in signature.parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def constructor_hints(target: Callable[..., object]) -> dict[str, object]:
    parameters = parameters_of(target).values()
    return {p.name: p.annotation for p in parameters if p.annotation is not p.empty and p.kind is not p.VAR_KEYWORD}


def nearest_name(name: object, names: Iterable[str], prefix: str = "") -> str:
    """Returns a clause with the nearest name, or with all names if none is close."""
    names = sorted(names)
    match = closest(name, names)
    return f"did you mean {prefix}{match}?" if match else f"choose from {textwrap.shorten(', '.join(names), 200)}"


def closest(name: object, names: Iterable[str]) -> str | None:
    """Returns the closest name, or `None`. Three-letter words that share two letters do not match."""
    names = list(names)
    swapped = [candidate for candidate in names if sorted(candidate) == sorted(str(name))]
    return next(iter([*swapped, *difflib.get_close_matches(str(name), names, 1, cutoff=0.7)]), None)


def one_line(text: str) -> str:
    """Joins `text` into one sentence, and drops Hydra's links and search paths."""
    text = " ".join(re.split(r"\n+(?:See https|Config search path|Search path)", text)[0].split())
    return text if text.endswith((".", "?")) else f"{text}."


def find_shipped(folder: str, holds: str) -> Path:
    """Finds a shipped folder: inside the package in an installed wheel, next to it in a checkout."""
    for parent in (PACKAGE / "shipped", PACKAGE.parent):
        if (parent / folder / holds).is_file():
            return parent / folder
    raise FileNotFoundError(f"the installation is missing {folder}/{holds}; reinstall node_fit.")


@functools.cache
def shipped_config() -> DictConfig:
    """Loads the shipped `config.yaml` as written, without its groups and Hydra's node."""
    config = OmegaConf.load(find_shipped("conf", "config.yaml") / "config.yaml")
    assert isinstance(config, DictConfig)
    return OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("defaults", "hydra")])


def shipped_option(group: str) -> DictConfig | None:
    """Loads the option of a group that `config.yaml` selects, as written; None if it selects none."""
    folder = find_shipped("conf", "config.yaml")
    for default in OmegaConf.load(folder / "config.yaml").defaults:
        if OmegaConf.is_dict(default) and default.get(group):
            option = OmegaConf.load(folder / group / f"{default[group]}.yaml")
            assert isinstance(option, DictConfig)
            return option
    return None


@functools.cache
def shipped_groups() -> tuple[str, ...]:
    """Returns the groups from which `config.yaml` selects options."""
    defaults = OmegaConf.load(find_shipped("conf", "config.yaml") / "config.yaml").defaults
    named = [str(name) for default in defaults if OmegaConf.is_dict(default) for name in default]
    return tuple(name for name in named if name.isidentifier())


def options_with(key: str) -> list[str]:
    """Returns the options of a group that have a key, such as `optimizer=adam` for `optimizer.clip`."""
    group, _, name = key.partition(".")
    options: list[str] = []
    for path in (
        sorted((find_shipped("conf", "config.yaml") / group).glob("*.yaml")) if group in shipped_groups() else ()
    ):
        if name in OmegaConf.load(path) and name.isidentifier():
            options.append(f"{group}={path.stem}")
    return options


@functools.cache
def known_keys() -> dict[str, frozenset[str]]:
    """Returns the keys that the commands read: top-level keys, under `""`, and keys of groups without a constructor."""
    conf = find_shipped("conf", "config.yaml")
    groups = {
        path.name for path in conf.iterdir() if path.is_dir() and path.name not in ("experiment", "hydra", "tune")
    }
    config, device = shipped_config(), OmegaConf.load(conf / "device" / "auto.yaml")
    nodes = {"": [*config, *groups], "device": device}
    nodes |= {name: config[name] for name in ("prediction_solver", "evaluation")}
    return {name: frozenset(map(str, node)) for name, node in nodes.items()}


# Maximum size of a config [bytes]; covariates by trajectory take the most space.
LARGEST_CONFIG = 4 << 20


def read_config(path: Path) -> Json:
    """Reads a stored config.

    **Raises:** `FileNotFoundError`, or `ConfigError` with the reason it can't be read.
    """
    if path.stat().st_size > LARGEST_CONFIG:
        raise ConfigError(f"{path} is larger than {LARGEST_CONFIG >> 20} MB, so it is not the config of a run.")
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text)
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, ValueError, RecursionError, omegaconf.OmegaConfBaseException) as error:
        raise ConfigError(f"{path} can't be read as YAML ({str(error).splitlines()[0]}); restore the file.") from None
    if not is_json(content):
        raise ConfigError(f"{path} is not the config of a run: it holds no keys.")
    return {str(key): value for key, value in content.items()}


PHRASES = {
    r"Ambiguous value .*?'(.*?)'\n": r"\1 gives several values; add --multirun to run each, or [] for one list.",
    r"Multiple values for (\S+)\.": r"\1 already has an option; write \1=OPTION without the plus sign.",
    r"Could not append .*at '(.*?)'": r"\1 already exists; write \1=VALUE without the plus sign.",
    r"Additional config directory '(.*)' not found": r"--config-dir: there is no folder '\1'.",
    r"Config group override .*Got (\w+)": r"A group takes the name of an option, as in optimizer=adam, not \1.",
}


# Groups and keys renamed since an earlier version, whose runs' configs have the old names.
OLD_NAMES = {
    "train": "training",
    "starts": "restarts",
    "evaluation.rtol": "prediction_solver.rtol",
    "evaluation.atol": "prediction_solver.atol",
}
# Renamed arguments, by constructor.
OLD_ARGUMENTS = {"node_fit.LevenbergMarquardt": {"memory": "max_bytes"}}
# Keys of earlier versions, and their replacements.
RENAMED = {
    **{old: f"write {new}{'.KEY' if old == 'train' else ''}=VALUE" for old, new in OLD_NAMES.items()},
    "training.ridge": "write penalty.ridge=VALUE",
    "training.smoothness": "write penalty.smoothness=VALUE",
    "training.kinetic_energy": "write penalty.kinetic_energy=VALUE",
    "training.physics": "write penalty.physics=VALUE",
    "training.clip": "write optimizer.clip=VALUE, which optimizer=adam has",
    "training.scale": "write ++data.scale=VALUE",
    "training.scan": "leave it out",
    "solver.steps": "write solver.stepping=VALUE",
}
# Launchers from other packages, and the extras that install them.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}


def explain(error: BaseException) -> str | None:
    """Explains why a config can't be read, in one sentence with the full key and the nearest valid name.

    **Arguments:**

    - `error`: an exception of this package, Hydra, OmegaConf or YAML, as raised with `HYDRA_FULL_ERROR=1`.

    **Returns:** the sentence, or `None` for any other exception.
    """
    text = str(error)
    match error:
        case ConfigError():
            return text
        case ConfigCompositionException(__cause__=omegaconf.OmegaConfBaseException() as cause):
            return explain(cause)
        case OverrideParseException(override=str(word)) if "=" not in word and Path(word).suffix:
            from ...data.tables.reading import missing  # Only an error needs it, and pandas with it.

            return one_line(missing(Path(word)))
        case OverrideParseException():
            rule = "write key=value, close every bracket, and put quotes around a value with special characters"
            return one_line(f"The override {error.override} can't be read; {rule}.")
        case MissingConfigException(missing_cfg_file=str(path)):
            group, _, name = path.rpartition("/")
            group = group or "--config-name"
            if group == "hydra/launcher" and name in LAUNCHERS:
                extra = f"pip install 'node_fit[{LAUNCHERS[name]}]'"
                return f"hydra/launcher={name} needs another package; install it with {extra}."
            hint = f"; {nearest_name(name, error.options, f'{group}=')}" if error.options else ""
            if group == "optimizer" and name.startswith("optax."):
                node = f"{{_target_: {name}, learning_rate: 1e-3}}"
                hint = f", and one of Optax is written '~optimizer' '+optimizer={node}'"
            return one_line(f"{group}={name} does not exist{hint}")
        case omegaconf.ConfigKeyError(full_key=str(key)) | omegaconf.ConfigAttributeError(full_key=str(key)):
            return one_line(unknown_key(key, error.parent_node))
        case omegaconf.MissingMandatoryValue(full_key=str(key)):
            return f"{key} has no value; set it with {key}=VALUE."
        case omegaconf.InterpolationResolutionError(full_key=str(key)) if key.startswith("hydra.runtime."):
            return (  # Hydra stores the run's path there, and parses it as a config value.
                "a new run can't begin in a folder with ${ in its path, which Hydra reads as a reference to a key; "
                "write it elsewhere with hydra.run.dir=FOLDER."
            )
        case omegaconf.InterpolationKeyError(full_key=str(key), parent_node=DictConfig() as parent):
            name = text.partition("'")[2].partition("'")[0]
            return one_line(
                f"{key} refers to ${{{name}}}, which is not a config key; {nearest_name(name, all_keys(parent))}"
            )
        case omegaconf.OmegaConfBaseException(full_key=str(key)) if text.startswith(
            "Cannot merge DictConfig with List"
        ):
            # OmegaConf gives the two kinds in the same order in both cases.
            kinds = "values by name, {NAME: VALUE}, where the config has a list, [a,b], or the other way round"
            return f"{key} has {kinds}; --cfg job shows which."
        case omegaconf.OmegaConfBaseException(full_key=str(key)):
            return one_line(f"{key} can't be used: {text.splitlines()[0]}")
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML, {error.problem}."
        case _:
            pass
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    reading = frames and frames[-1].partition(".")[0] in ("hydra", "omegaconf", "yaml", "antlr4")
    if not reading and not isinstance(error, (HydraException, omegaconf.OmegaConfBaseException, yaml.YAMLError)):
        return None
    if isinstance(error, AssertionError):  # Hydra's own, raised without a message for `+=`.
        return "An override has no key; write key=value."
    for pattern, sentence in PHRASES.items():
        if phrase := re.match(pattern, text):
            return phrase.expand(sentence)
    return one_line(text or f"The config can't be read: {error!r}")


def unknown_key(key: str, parent: Any) -> str:
    """Explains that the config has no such key; its constructor can still accept it."""
    owner, _, name = key.rpartition(".")
    siblings = {str(full_key) for full_key in parent or ()} - {"hydra"}
    is_ours = not OmegaConf.is_dict(parent) or str(parent.get("_target_", "node_fit.")).startswith("node_fit.")
    if is_ours and name not in siblings and (owners := options_with(key)):
        return other_option(key, owners)
    if "_target_" in siblings:
        try:
            arguments = set(parameters_of(locate(parent["_target_"], key, ALLOWED)))
        except ConfigError:
            arguments: set[str] = set()
        if name in arguments and name in all_keys(parent):  # It is a group at the top of the config.
            return f"{key} is not a config key; write {name}=VALUE."
        if name in arguments:
            return f"{key} is not in the config, so it has its default; write +{key}=VALUE to set it."
        siblings = siblings - {"_target_", "_partial_"} | arguments
    if was_renamed(key):
        return find_renamed(key)
    if not siblings:
        return f"{key} is not a config key; {owner} holds a value, not keys."
    namesakes = [full_key for full_key in all_keys(parent) if f".{full_key}".endswith(f".{name}")]
    if namesakes and not closest(name, siblings):
        return f"{key} is not a config key; did you mean {namesakes[0]}?"
    return f"{key} is not a config key; {nearest_name(name, siblings, owner and f'{owner}.')}"


def other_option(key: str, owners: list[str]) -> str:
    """Explains that a key only exists in other options of its group."""
    choice = "one of these" if owners[1:] else "it"
    return f"{key} is a key of {', '.join(owners)} alone; choose {choice}, or leave it out."


def find_renamed(key: str) -> str:
    """Explains the replacement of a key of an earlier version."""
    return f"{key} is no longer a config key; {RENAMED.get(key) or f'write {name_of_now(key)}=VALUE'}."


def name_of_now(key: str) -> str:
    """Returns the current name of a full key of an earlier version; other keys are unchanged."""
    for old, new in OLD_NAMES.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def is_node(value: object) -> TypeGuard[MutableMapping[str, object]]:
    """Whether a config value, plain or not, is a mapping."""
    return isinstance(value, MutableMapping)


def rename_keys(config: MutableMapping[Any, Any]) -> None:
    """Renames the keys of a stored config, or of plain dicts, to their current names."""
    for old, new in OLD_NAMES.items():
        (group, _, key), (group_now, _, key_now) = old.rpartition("."), new.rpartition(".")
        node = config.get(group) if group else config
        if is_node(node) and key in node:
            owner = config.setdefault(group_now, {}) if group_now else config
            owner[key_now] = node.pop(key)
    for node in list(config.values()):
        if is_node(node):
            for key, key_now in OLD_ARGUMENTS.get(str(node.get("_target_")), {}).items():
                if key in node:
                    node[key_now] = node.pop(key)


def was_renamed(key: str) -> bool:
    """Whether an earlier version had this full key."""
    return key in RENAMED or name_of_now(key) != key


def check_group_names(given: Iterable[str], target: Callable[..., object], key: str, partial: bool) -> None:
    """Rejects unknown arguments of a constructor and, unless the call is partial, missing ones."""
    parameters = parameters_of(target)
    extra = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in given:
        if name not in parameters and not extra:
            if was_renamed(f"{key}.{name}"):
                raise ConfigError(find_renamed(f"{key}.{name}"))
            if owners := options_with(f"{key}.{name}"):
                raise ConfigError(other_option(f"{key}.{name}", owners))
            hint = nearest_name(name, parameters, f"{key}.")
            raise ConfigError(f"{key}.{name} is not an argument of {target.__name__}; {hint}")
    for name, p in parameters.items():
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in given and not partial:
            raise ConfigError(f"{key}.{name} is required by {target.__name__}; set it with +{key}.{name}=VALUE")


# OmegaConf has no public access to parent nodes.
ROOT_OF_NODE = "_get_root"


def all_keys(node: DictConfig) -> list[str]:
    """Returns the full keys of the config that contains a node, without those of Hydra and `_target_`."""
    root = OmegaConf.to_container(getattr(node, ROOT_OF_NODE)())
    return [key for key in full_keys(root) if not re.match(r"hydra\b|.*\._", key)]


def full_keys(node: object, prefix: str = "") -> Iterator[str]:
    for name, child in node.items() if is_json(node) else ():
        yield f"{prefix}{name}"
        yield from full_keys(child, f"{prefix}{name}.")
