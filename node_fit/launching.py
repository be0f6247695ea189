"""What the commands with a config have in common: where it is found, and how they end."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from .composition import explain
from .disk import explain_disk
from .drawing import DRAWING
from .leaderboard import Leaderboard
from .resuming import with_resumed

HERE = Path(__file__).parent


def shipped(folder: str, holds: str) -> Path:
    """The folder that is inside the package in an installed wheel and beside it in a checkout."""
    for parent in (HERE, HERE.parent):
        if (parent / folder / holds).is_file():
            return parent / folder
    raise FileNotFoundError(f"the installation lacks {folder}/{holds}; install node_fit again.")


def register() -> None:
    """Teaches OmegaConf `${shipped:FILE}`; once in every process that reads a config."""
    OmegaConf.register_new_resolver("shipped", lambda name: str(shipped("data", name) / name), replace=True)


def wants_tracebacks() -> bool:
    """Whether the user has asked Hydra for them."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def launch(
    name: str,
    config_name: str,
    job: Callable[[DictConfig], int],
    tracebacks: bool,
    prepare: Callable[[list[str]], list[str]] = with_resumed,
) -> None:
    """Composes the config from the command line and runs the job or the jobs; an error ends the process with 1.

    **Arguments:**

    - `name`: of the command.
    - `config_name`: of the file in `conf/`.
    - `job`: what is run; also in other processes, if a launcher has some.
    - `tracebacks`: whether errors come with one.
    - `prepare`: makes the arguments that are composed of those that were given.
    """
    register()
    # Hydra then raises what it would print in its own words.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[0] = name
    try:
        sys.argv[1:] = prepare(sys.argv[1:])
        conf = str(shipped("conf", "config.yaml"))
        run = hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(job)
        try:
            run()
        finally:
            DRAWING.finish()
    except BrokenPipeError:
        sys.exit(1)  # whoever read the output has seen enough
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        Leaderboard.write_what_there_is()
        if tracebacks:
            raise
        complain(error)
        sys.exit(1)


def complain(error: Exception) -> None:
    """Says in a sentence what went wrong."""
    sentence = explain(error) or (explain_disk(error, ".") if isinstance(error, OSError) else str(error))
    print(f"error: {sentence}", file=sys.stderr)
