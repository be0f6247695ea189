"""`resume=DIRECTORY`: the command line of the run that is gone on with."""

import os
from pathlib import Path

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from .targets import ConfigError

# What a resumed run may be told anew; all else would make it another run.
CHANGEABLE = ("train.steps", "train.patience", "device", "verbose", "hydra.")


def with_resumed(arguments: list[str]) -> list[str]:
    """The arguments; if `resume=` names a run, those that it was started with, and the working directory made its own.

    **Raises:** `ConfigError` if it names no run, or the run would become another one.
    """
    given = get_args_parser().parse_known_args(arguments)[0]
    named = [word.partition("=")[2].strip("'\"") for word in given.overrides if word.startswith("resume=")]
    if not named or named[-1] in ("", "null"):
        return arguments
    if given.multirun:
        raise ConfigError("resume goes on with one run and can't be combined with --multirun.")
    directory = Path(named[-1]).absolute()
    check_run(directory, named[-1])
    changes = [word for word in given.overrides if not word.startswith("resume=")]
    check_changes(changes)
    record = OmegaConf.load(directory / ".hydra" / "hydra.yaml").hydra
    # Relative paths meant what they meant where the run began.
    if Path(record.runtime.cwd).is_dir():
        os.chdir(record.runtime.cwd)
    sources = record.runtime.config_sources
    folders = [
        word for source in sources if source.provider == "command-line" for word in ("--config-dir", source.path)
    ]
    earlier = [word for word in map(str, record.overrides.task) if not word.startswith("resume=")]
    # The run keeps its own record of how it began.
    place = [f"resume='{directory}'", f"hydra.run.dir='{directory}'", "hydra.output_subdir=null"]
    return [*folders, *earlier, *changes, *place]


def check_run(directory: Path, name: str) -> None:
    if not (directory / ".hydra" / "hydra.yaml").is_file():
        fault = "it holds no .hydra/hydra.yaml" if directory.exists() else "there is no such directory"
        raise ConfigError(f"resume={name} is no run: {fault}; name a directory such as outputs/DATE/TIME.")


def check_changes(changes: list[str]) -> None:
    for word in changes:
        key = word.lstrip("+~").partition("=")[0]
        if not key.startswith(CHANGEABLE):
            raise ConfigError(
                f"resume goes on with a run as it was, so {key} can't be changed; leave it out, or start a new run. "
                f"Only {', '.join(name.rstrip('.') for name in CHANGEABLE)} may be given."
            )
