"""The common part of the commands with a config: where they find it, and how they exit."""

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import hydra
from hydra._internal import hydra as loading
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.utils import run_job
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from ..runtime.out_of_memory import explain_memory
from ..storage.disk import explain_disk
from .background import DRAWING
from .config.build import check_equations, read_equation_file
from .config.composition import explain, shipped
from .config.overrides import complete, quoted_words, with_or_without_plus
from .config.targets import ConfigError, check_hydra
from .leaderboard import Leaderboard
from .resuming import with_resumed


def register() -> None:
    """Registers `${shipped:FILE}` with OmegaConf; every process that reads a config must call it."""
    OmegaConf.register_new_resolver("shipped", lambda name: str(shipped("data", name) / name), replace=True)


class CheckedLoader(ConfigLoaderImpl):
    """Hydra's loader, which refuses configs that name targets for Hydra itself to call."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        # Hydra composes each job of a multirun twice: to see that all can be composed, and to run it.
        self.composed: dict[str, bytes] = {}

    def load_configuration(self, *arguments: Any, **keywords: Any) -> DictConfig:
        asked = repr((arguments, keywords))
        if asked in self.composed:
            return pickle.loads(self.composed.pop(asked))
        with with_or_without_plus():
            config = super().load_configuration(*arguments, **keywords)
        check_hydra(config)
        read_equation_file(config)
        self.composed[asked] = pickle.dumps(config)
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
) -> None:
    """Composes the config from the command line and runs one job or a multirun; an error ends the process with 1.

    **Arguments:**

    - `name`: the command's name.
    - `config_name`: name of the file in `conf/`, without its suffix.
    - `job`: the function to run, which a launcher may also call in other processes.
    - `tracebacks`: whether to print a traceback with an error.
    - `prepare`: maps the given arguments to those that Hydra composes.
    """
    register()
    # Hydra has no place to say which loader, nor what to do before it makes the folder of a run.
    setattr(loading, ConfigLoaderImpl.__name__, CheckedLoader)
    setattr(loading, run_job.__name__, run_checked_job)
    # Makes Hydra raise errors instead of printing them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[0] = name
    words = sys.argv[1:]
    try:
        words = complete(words, name)
        sys.argv[1:] = prepare(words)
        conf = str(shipped("conf", "config.yaml"))
        run = hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(job)
        try:
            run()
        finally:
            DRAWING.finish()
    except BrokenPipeError:
        sys.exit(1)  # The reader of the output has closed it.
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        Leaderboard.write_what_there_is()
        if tracebacks:
            raise
        wrong = error.override if isinstance(error, OverrideParseException) else ""
        better = quoted_words(words, wrong)
        print_error(ConfigError(f"{wrong} can't be read; write {better}") if better else error)
        sys.exit(1)


def run_checked_job(*arguments: Any, **keywords: Any) -> Any:
    """Hydra's `run_job`, once the equations are checked: what is told here leaves no folder of a run."""
    check_equations(keywords["config"])
    return run_job(*arguments, **keywords)


def print_error(error: Exception) -> None:
    """Prints an error as one sentence."""
    sentence = explain(error) or explain_memory(error)
    sentence = sentence or (explain_disk(error, ".") if isinstance(error, OSError) else str(error))
    print(f"error: {sentence or type(error).__name__}", file=sys.stderr)
