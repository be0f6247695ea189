"""`resume=DIRECTORY`: the command line of the run that is gone on with."""

import json
import os
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, ListConfig, OmegaConf

from .targets import ConfigError

# What a resumed run may be told anew; all else would make it another run.
CHANGEABLE = ("train.steps", "train.patience", "precision", "device", "verbose", "resume_from", "hydra.")
# In the run's directory. Hydra's own record there is written anew by whoever tries to begin a second run in it.
RECORD = ".run.json"


def command_record(hydra: Any) -> dict[str, Any]:
    """How a run was begun, from Hydra's part of its config: what `with_resumed` needs to begin it again."""
    sources = hydra.runtime.config_sources
    return {
        "overrides": list(map(str, hydra.overrides.task)),
        "config_dirs": [source.path for source in sources if source.provider == "command-line"],
        "cwd": hydra.runtime.cwd,
    }


def with_resumed(arguments: list[str]) -> list[str]:
    """The arguments; if `resume=` names a run, those that it was started with, and the working directory made its own.

    **Raises:** `ConfigError` if it names no run, or the run would become another one.
    """
    given = get_args_parser().parse_known_args(arguments)[0]
    named = [word.partition("=")[2].strip("'\"") for word in given.overrides if word.startswith("resume=")]
    if not named or named[-1] in ("", "null", "auto"):  # `auto` is left to the job, which knows its directory
        if named[-1:] != ["auto"] and any(word.startswith("resume_from=") for word in given.overrides):
            raise ConfigError("resume_from says where a run goes on; name the run, too, by resume=DIRECTORY.")
        return arguments
    if given.multirun:
        raise ConfigError("resume goes on with one run and can't be combined with --multirun.")
    directory = Path(named[-1]).absolute()
    record = read_record(directory, named[-1])
    changes = [word for word in given.overrides if not word.startswith("resume=")]
    check_changes(changes)
    # Relative paths meant what they meant where the run began.
    if Path(record["cwd"]).is_dir():
        os.chdir(record["cwd"])
    folders = [word for path in record["config_dirs"] for word in ("--config-dir", path)]
    earlier = [word for word in record["overrides"] if not word.startswith(("resume=", "resume_from="))]
    # The run keeps its own record of how it began.
    place = [f"resume='{directory}'", f"hydra.run.dir='{directory}'", "hydra.output_subdir=null"]
    return [*folders, *earlier, *changes, *place]


def read_record(directory: Path, name: str) -> dict[str, Any]:
    """What `command_record` gave when the run began.

    **Raises:** `ConfigError` if there is none.
    """
    try:
        record = json.loads((directory / RECORD).read_text())
        return {key: record[key] for key in ("overrides", "config_dirs", "cwd")}
    except OSError:
        fault = f"it holds no {RECORD}" if directory.exists() else "there is no such directory"
    except (ValueError, KeyError, TypeError):
        fault = f"its {RECORD} can't be read"
    raise ConfigError(f"resume={name} is no run: {fault}; name a directory such as outputs/DATE/TIME.")


def check_changes(changes: list[str]) -> None:
    for word in changes:
        key = word.lstrip("+~").partition("=")[0]
        if not key.startswith(CHANGEABLE):
            raise ConfigError(
                f"resume goes on with a run as it was, so {key} can't be changed; leave it out, or start a new run. "
                f"Only {', '.join(name.rstrip('.') for name in CHANGEABLE)} may be given."
            )


def check_same(before: DictConfig | ListConfig, now: DictConfig, place: Path) -> None:
    """Refuses to go on with a run under another config than it began with, but for what may be told anew.

    **Arguments:**

    - `before`, `now`: the two configs.
    - `place`: the run's directory, for the error.

    **Raises:** `ConfigError` that names the first key that differs.
    """
    then = leaves(OmegaConf.to_container(before))
    # As a file would hold it.
    this = leaves(OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(now, resolve=True))))
    for key in [*then, *(set(this) - set(then))]:
        if then.get(key) != this.get(key) and not key.startswith((*CHANGEABLE, "resume")):
            raise ConfigError(
                f"{place} holds a run that began with {key}={then.get(key)}, now it is {this.get(key)}; bring that "
                "back, or choose another directory."
            )


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested dicts by their dotted keys."""
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in leaves(child, f"{prefix}{name}.").items()}
