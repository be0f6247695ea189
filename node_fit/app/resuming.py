"""`resume=DIRECTORY`: restores the command line of the run to resume."""

import json
import os
import re
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, ListConfig, OmegaConf

from .config.stored import read_config
from .config.targets import ConfigError

# Keys that may change when a run resumes; any other change would make it a different run.
CHANGEABLE = (
    "train.steps",
    "train.patience",
    "precision",
    "device",
    "verbose",
    "report",
    "resume_from",
    "hydra.",
    "extensions",
    "compile_cache",
)
# A file in the run's directory. Hydra's own record is not safe: an attempt to start a second run there overwrites it.
RECORD = ".run.json"


def command_record(hydra: Any) -> dict[str, Any]:
    """Records how a run was started, from Hydra's node of its config; `with_resumed` needs it to resume the run."""
    sources = hydra.runtime.config_sources
    return {
        "overrides": list(map(str, hydra.overrides.task)),
        "config_dirs": [source.path for source in sources if source.provider == "command-line"],
        "cwd": hydra.runtime.cwd,
    }


def with_resumed(arguments: list[str]) -> list[str]:
    """Returns the arguments, or, if `resume=` names a run, the run's own arguments, after a change to its directory.

    **Raises:** `ConfigError` if `resume=` does not name a run, or an argument would make it a different run.
    """
    given = get_args_parser().parse_known_args(arguments)[0]
    named = [word.partition("=")[2].strip("'\"") for word in given.overrides if word.startswith("resume=")]
    if not named or named[-1] in ("", "null", "auto"):  # The job resolves `auto`, since it knows its directory.
        if named[-1:] != ["auto"] and any(word.startswith("resume_from=") for word in given.overrides):
            raise ConfigError("resume_from selects a checkpoint of a run; also name the run with resume=DIRECTORY.")
        return arguments
    if given.multirun:
        raise ConfigError("resume continues a single run and can't be combined with --multirun.")
    directory = Path(named[-1]).absolute()
    record = read_record(directory, named[-1])
    changes = [word for word in given.overrides if not word.startswith("resume=")]
    check_changes(changes)
    # Relative paths in the arguments refer to the directory in which the run was started.
    if Path(record["cwd"]).is_dir():
        os.chdir(record["cwd"])
    folders = [word for path in record["config_dirs"] for word in ("--config-dir", path)]
    earlier = [word for word in record["overrides"] if not word.startswith(("resume=", "resume_from="))]
    changes = [*what_runs_code(directory, changes), *changes]
    # Keep Hydra from overwriting the run's record of its start.
    place = [f"resume='{directory}'", f"hydra.run.dir='{directory}'", "hydra.output_subdir=null"]
    return [*folders, *earlier, *changes, *place]


def what_runs_code(directory: Path, changes: list[str]) -> list[str]:
    """Overrides for the keys of a run that name code, which come from the caller alone.

    **Raises:** `ConfigError` if the run needs extensions that the caller does not name.
    """
    stored = read_config(directory / "config.yaml") if (directory / "config.yaml").is_file() else {}
    given = {word.lstrip("+~").partition("=")[0] for word in changes}
    if stored.get("extensions") and "extensions" not in given:
        named = ",".join(map(str, stored["extensions"]))
        raise ConfigError(
            f"the run in {directory} uses packages, whose code would run; if you trust them, resume it with "
            f"'extensions=[{named}]'."
        )
    # A cache holds machine code.
    defaults = {"extensions": "[]", "compile_cache": "false" if stored.get("compile_cache") is False else "auto"}
    return [f"{key}={value}" for key, value in defaults.items() if key not in given]


def read_record(directory: Path, name: str) -> dict[str, Any]:
    """Reads the `command_record` of a run.

    **Raises:** `ConfigError` if there is none.
    """
    try:
        record = json.loads((directory / RECORD).read_text())
        check_words(record)
        return {key: record[key] for key in ("overrides", "config_dirs", "cwd")}
    except OSError:
        fault = f"it has no {RECORD}" if directory.exists() else "there is no such directory"
    except (ValueError, KeyError, TypeError, RecursionError):
        fault = f"its {RECORD} can't be read"
    raise ConfigError(f"resume={name} is not a run: {fault}; name a directory such as outputs/DATE/TIME.")


def check_words(record: dict[str, Any]) -> None:
    """Checks that a record holds overrides and folders, and nothing that Hydra would take as an option of its own.

    **Raises:** `ValueError` otherwise.
    """
    words = [*record["overrides"], *record["config_dirs"], record["cwd"]]
    if not all(isinstance(word, str) and word and not word.startswith("-") for word in words):
        raise ValueError("not words")
    if any(re.match(r"[+~]*hydra\b", word) for word in record["overrides"]):
        raise ValueError("keys of Hydra's")


def check_changes(changes: list[str]) -> None:
    for word in changes:
        key = word.lstrip("+~").partition("=")[0]
        if not key.startswith(CHANGEABLE):
            raise ConfigError(
                f"resume continues a run as it is, so {key} can't be changed; leave it out, or start a new run. "
                f"Only {', '.join(name.rstrip('.') for name in CHANGEABLE)} may change."
            )


def check_same(before: DictConfig | ListConfig, now: DictConfig, place: Path) -> None:
    """Checks that a run resumes with the config that it was started with, except for keys that may change.

    **Arguments:**

    - `before`, `now`: the two configs.
    - `place`: the run's directory, for the error message.

    **Raises:** `ConfigError` that names the first key that differs.
    """
    then = leaves(OmegaConf.to_container(before))
    # In the form that a YAML file gives back.
    this = leaves(OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(now, resolve=True))))
    for key in [*then, *(set(this) - set(then))]:
        if then.get(key) != this.get(key) and not key.startswith((*CHANGEABLE, "resume")):
            raise ConfigError(
                f"the run in {place} was started with {key}={then.get(key)}, but now it is {this.get(key)}; restore "
                "the old value, or choose another directory."
            )


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested dicts into one dict with dotted keys."""
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in leaves(child, f"{prefix}{name}.").items()}
