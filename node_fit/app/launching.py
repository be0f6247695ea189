"""The command line shared by all commands: short forms of overrides, location of the config, and exit codes."""

import difflib
import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import hydra as loading
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobReturn, run_job
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf import errors as omegaconf
from omegaconf._utils import split_key

from ..data.tables.reading import TABLE_ENDINGS
from ..runtime.placement import explain_memory
from ..runtime.serialization import is_json
from ..storage.files import explain_disk
from .background import DRAWING
from .config.build import add_random_constants, check_equations, convert, read_equation_file
from .config.composition import (
    ALLOWED,
    ConfigError,
    check_hydra,
    constructor_hints,
    explain,
    find_shipped,
    locate,
    parameters_of,
    shipped_groups,
)
from .config.overrides import depth, quoted_words, split_items, value_of, with_quotes
from .leaderboard import Leaderboard
from .recognition import MODEL_FILES, keys_of_option
from .run_directory import with_resumed


def register() -> None:
    """Registers `${shipped:FILE}` with OmegaConf; every process that reads a config must call it."""

    def path_of(name: str) -> str:
        return str(find_shipped("data", name) / name)

    OmegaConf.register_new_resolver("shipped", path_of, replace=True)


class CheckedLoader(ConfigLoaderImpl):
    """Hydra's loader, which refuses configs that name targets for Hydra itself to call."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        # Hydra composes each job of a multirun twice: once to check it and once to run it.
        self.composed: dict[str, bytes] = {}

    def load_configuration(self, *arguments: Any, **keywords: Any) -> DictConfig:
        request = repr((arguments, keywords))
        if request in self.composed:
            return pickle.loads(self.composed.pop(request))
        with with_or_without_plus():
            config = super().load_configuration(*arguments, **keywords)
        check_hydra(config)
        read_equation_file(config)
        add_random_constants(config)
        self.composed[request] = pickle.dumps(config)
        return config


def wants_tracebacks() -> bool:
    """Whether the user has set `HYDRA_FULL_ERROR=1`."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def launch(
    name: str,
    config_name: str,
    job: Callable[[DictConfig], int],
    tracebacks: bool,
    prepare: Callable[[list[str]], list[str]] = with_resumed,
    commands: Sequence[str] = (),
) -> None:
    """Composes the config from the command line and runs one job or a multirun; an error ends the process with 1.

    **Arguments:**

    - `name`: the command's name.
    - `config_name`: name of the file in `conf/`, without its suffix.
    - `job`: the function to run, which a launcher can also call in other processes.
    - `tracebacks`: whether to print a traceback with an error.
    - `prepare`: maps the command-line arguments to those that Hydra composes.
    - `commands`: names of commands that could have been meant by a first word that is neither a key nor a file.
    """
    register()
    # Hydra has no option for its loader, and no hook before it creates a run's folder.
    setattr(loading, ConfigLoaderImpl.__name__, CheckedLoader)
    setattr(loading, run_job.__name__, run_checked_job)
    # Makes Hydra raise errors instead of printing them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[0] = name
    words = sys.argv[1:]
    try:
        check_first_word(words[:1], commands)
        words = complete(words, name)
        sys.argv[1:] = prepare(words)
        conf = str(find_shipped("conf", "config.yaml"))
        run = hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(job)
        try:
            run()
        finally:
            DRAWING.finish()
    except BrokenPipeError:
        sys.exit(1)  # The reader of the output has closed it.
    except KeyboardInterrupt as ended:
        if str(ended):
            print(f"stopped {ended}")
        sys.exit(130)
    except Exception as error:
        Leaderboard.write_unfinished()
        if tracebacks:
            raise
        wrong = error.override if isinstance(error, OverrideParseException) else ""
        better = quoted_words(words, wrong)
        print_error(ConfigError(f"{wrong} can't be read; write {better}") if better else error)
        sys.exit(1)


def run_checked_job(*arguments: Any, **keywords: Any) -> JobReturn:
    """Runs Hydra's `run_job` after checking the equations, so that an error in them leaves no run folder."""
    check_equations(keywords["config"])
    try:
        return run_job(*arguments, **keywords)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # An error with Hydra's files; a job reports its own.
            error.filename = str(OmegaConf.select(keywords["config"], keywords["job_dir_key"]))
        raise


def print_error(error: Exception) -> None:
    """Prints an error as one sentence."""
    if isinstance(error, OSError) and error.errno is not None:
        sentence = explain_disk(error, ".")
    else:
        sentence = explain(error) or explain_memory(error) or str(error)
    print(f"error: {sentence or type(error).__name__}", file=sys.stderr)


ENDINGS = (*TABLE_ENDINGS, *MODEL_FILES)


def complete(words: list[str], program: str) -> list[str]:
    """Returns the words of a command as Hydra reads them, with keys for data files and no `+` before group options."""
    groups = "|".join(shipped_groups())
    words = [re.sub(rf"^\+({groups})=(?!\{{)", r"\1=", word) for word in words]
    words = [part for word in words for part in formulas_in_full(with_quoted_formulas(word))]
    files, words = without_files(words)
    by_key = {word.lstrip("+").partition("=")[0]: word for word in find_overrides(words)}
    check_data_is_no_file(by_key.get("data", ""))
    if not files and (word := find_path_without_source(words, by_key)):
        files, words = [word.partition("=")[2].strip("'\"")], [other for other in words if other != word]
        del by_key["data.path"]
    if not files:
        return join_overrides(words)
    added, sentence = keys_of_option(files, by_key)
    keys = {word.partition("=")[0] for word in added}
    kept_words = [word for word in words if word.lstrip("+").partition("=")[0] not in keys or "=" not in word]
    words = join_overrides([*added, *kept_words])
    flags = get_args_parser().parse_known_args(words)[0]
    if not flags.cfg and not flags.info:
        print(f"{sentence}; in full: python -m {program} {shlex.join(words)}")
    return words


def formulas_in_full(word: str) -> list[str]:
    """Returns the words that `observation={c: A/V}` stands for, and any other word as it is."""
    key, _, value = word.partition("=")
    is_short = key.lstrip("+") == "observation" and value.startswith("{") and "_target_" not in value
    return ["observation=formula", f"observation.formulas={value}"] if is_short else [word]


def with_quoted_formulas(word: str) -> str:
    """Returns a mapping of formulas with the quotes that Hydra needs around brackets, and any other word as it is."""
    key, equals, value = word.partition("=")
    is_mapping_of_texts = bool(equals) and value.startswith("{") and value.endswith("}") and not depth(value)
    if not is_mapping_of_texts or value_of(word) is not None:
        return word
    if not all(":" in item for item in split_items(value[1:-1])):
        return word
    better = f"{key}={with_quotes(value)}"
    return word if value_of(better) is None else better


def find_overrides(words: list[str]) -> list[str]:
    """Returns the overrides of a command, whether before or after its flags."""
    parsed, others = get_args_parser().parse_known_args(words)
    return [*parsed.overrides, *(word for word in others if not word.startswith("-"))]


def join_overrides(words: list[str]) -> list[str]:
    """Moves the overrides after the flags if they are on both sides, which Hydra's parser can't read."""
    if all(word.startswith("-") for word in get_args_parser().parse_known_args(words)[1]):
        return words
    overrides = find_overrides(words)
    return [*(word for word in words if word not in overrides), *(word for word in words if word in overrides)]


def check_first_word(words: Sequence[str], commands: Sequence[str]) -> None:
    """Rejects a first word that is neither a key, a flag, a file nor a folder, as a misspelled command is.

    **Raises:** `ConfigError` with the commands, or the one of nearly the same name.
    """
    for word in words:
        if commands and word.isidentifier() and not Path(word).exists():
            near = difflib.get_close_matches(word, commands, 1)
            hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(sorted(commands))}."
            raise ConfigError(f"{word} is neither a command of node-fit nor a file; {hint}")


def check_data_is_no_file(word: str) -> None:
    """Rejects `data=mine.csv`: `data` selects a kind of source, and a file needs no key.

    **Raises:** `ConfigError` with the corrected command.
    """
    name = word.partition("=")[2].strip("'\"")
    if name and is_table(name):
        raise ConfigError(f"{word} names a file, and data names a kind of source; write the file alone: {name}.")


def find_path_without_source(words: list[str], by_key: Mapping[str, str]) -> str | None:
    """Returns `data.path=mine.csv` if nothing says what kind of source it is: the record shipped by default is another.

    **Arguments:** `by_key`: overrides by key.
    """
    sources = {"data", "experiment", "resume"} & set(by_key)
    own_config = get_args_parser().parse_known_args(words)[0].config_name
    word = by_key.get("data.path", "")
    is_there = Path(word.partition("=")[2].strip("'\"")).exists()
    return word if is_there and not sources and own_config is None else None


def without_files(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits off the data files, named after `--data` or alone, from the other words."""
    after = False
    files: list[str] = []
    others: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        after = name == "--data" or (after and not word.startswith("-") and "=" not in word)
        if name != "--data":
            (files if after else others).append(word)
        elif value:
            files.append(value)
    if words and words[-1] == "--data":
        raise ConfigError("--data names no file; write --data mine.csv.")
    alone = [word for word in find_overrides(others) if is_table(word) or ("=" not in word and Path(word).is_dir())]
    return [*files, *alone], [word for word in others if word not in alone]


def is_table(word: str) -> bool:
    plain = "=" not in word and not word.startswith("~")
    return plain and (word.lower().endswith(ENDINGS) or Path(word).is_file())


# A private method of Hydra's loader, which has no public hook for override syntax.
APPLY_OVERRIDES = "_apply_overrides_to_config"


@contextmanager
def with_or_without_plus() -> Generator[None]:
    """Makes Hydra accept `+` before existing keys, and no `+` before new keys that a constructor accepts."""
    apply: Callable[[list[Override], DictConfig], None] = getattr(ConfigLoaderImpl, APPLY_OVERRIDES)

    def apply_each(overrides: list[Override], config: DictConfig) -> None:
        for override in overrides:
            if (override.is_add() and exists(config, override.key_or_group)) or (
                override.type == OverrideType.CHANGE and can_add(config, override.key_or_group, override.value())
            ):
                override.type = OverrideType.FORCE_ADD
            apply([override], config)

    setattr(ConfigLoaderImpl, APPLY_OVERRIDES, staticmethod(apply_each))
    try:
        yield
    finally:
        setattr(ConfigLoaderImpl, apply.__name__, staticmethod(apply))


def exists(config: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    except omegaconf.OmegaConfBaseException:
        return False
    return OmegaConf.is_dict(node) and name in node


def can_add(config: DictConfig, key: str, value: object) -> bool:
    """Whether the nearest node's constructor accepts a key, as an argument or inside a mapping argument."""
    names = split_key(key)
    if names[0] == "hydra":
        return False
    if config.get(names[0]) == "auto" and len(names) > 1 and names[0] == "start":  # A rule that the keys complete.
        return True
    node = OmegaConf.to_container(OmegaConf.masked_copy(config, names[0]), resolve=False)
    target, path = None, []
    for name in names:
        if is_json(node) and "_target_" in node:
            target = node["_target_"]
            path: list[str] = []
        node = node.get(name) if is_json(node) else None
        path.append(name)
    if target is None or (len(path) == 1 and path[0] in config):  # A top-level key is not an argument.
        return False
    try:
        maker = locate(target, key, ALLOWED)
    except ConfigError:  # A package not yet imported; building it reports errors.
        return True
    if path[0] not in parameters_of(maker):
        return False
    is_whole = len(path) == 1 and not isinstance(value, dict)
    return is_whole or takes_mapping(constructor_hints(maker).get(path[0], object))


def takes_mapping(hint: object) -> bool:
    try:
        convert({}, hint)
    except (ValueError, OverflowError):
        return False
    return True
