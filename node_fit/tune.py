"""The command `python -m node_fit.tune`: searches for the config values that score best on validation data."""

import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from .app.config.composition import explain
from .app.config.targets import ConfigError
from .app.console import format_number, make_console
from .app.launching import launch, print_error, wants_tracebacks
from .app.leaderboard import publish
from .app.resuming import command_record, flatten, plain_runtime, quote_override
from .app.run_logger import Interruption
from .app.search import Study, Trial, read_space
from .data.table_source import Table
from .startup import BEGAN
from .storage.disk import write_file

# Keys that may differ between the processes of one search.
FREE_KEYS = ("device", "verbose", "report", "compile_cache", "resume", "resume_from")


def main() -> None:
    """Composes the config, runs the search, and exits with 0 if a trial has completed."""
    imported = time.perf_counter() - BEGAN
    tracebacks = wants_tracebacks()
    codes: list[int] = []

    def job(config: DictConfig) -> int:
        try:
            codes.append(Search(config, imported, tracebacks).run())
        except Exception as error:  # Hydra would add its own text.
            if tracebacks:
                raise
            print_error(error)
            codes.append(1)
        return codes[-1]

    launch("node_fit.tune", "tune", job, tracebacks, check_arguments)
    sys.exit(max(codes, default=0))


def check_arguments(arguments: list[str]) -> list[str]:
    """Returns the command-line arguments unchanged if a search accepts them.

    **Raises:** `ConfigError` for `--multirun`, `resume` and `resume_from`.
    """
    given = get_args_parser().parse_known_args(arguments)[0]
    if given.multirun:
        raise ConfigError("a search runs its own trials; leave out --multirun.")
    if any(word.startswith(("resume=", "resume_from=")) for word in given.overrides):
        raise ConfigError("to continue a search, repeat its command with tune.study=DIRECTORY and without resume.")
    return arguments


class Search:
    """A search in this process.

    **Arguments:**

    - `config`: composed from `conf/tune.yaml`.
    - `imported`, `tracebacks`: passed to each run, see `application.run`.
    """

    def __init__(self, config: DictConfig, imported: float, tracebacks: bool):
        hydra = HydraConfig.get()
        self.config = config
        self.imported = imported
        self.tracebacks = tracebacks
        self.command = command_record(hydra)
        self.path = Path(plain_runtime(hydra)["output_dir"])
        self.loader = GlobalHydra.instance().config_loader()
        self.space = read_space(OmegaConf.to_container(config.tune.space, resolve=True))
        self.fixed = [word for word in self.command["overrides"] if not self.is_searched(key_of(word))]
        self.console: Console = make_console()
        self.study: Study  # Set in `run`, after the config is checked.

    def is_searched(self, key: str) -> bool:
        return key == "tune" or key.startswith("tune.") or key in {parameter.key for parameter in self.space}

    def run(self) -> int:
        """Runs trials up to the number or the time that the config allows.

        **Returns:** the exit code: 0, 1 if no trial has completed, 130 or 143 if a signal ended the search.
        """
        with Interruption(self.say) as interruption:
            facts = self.check()
            self.study = Study(self.path, *self.tools(), interruption)
            self.study.check_facts(facts)
            while interruption.number is None and not self.is_timed_out():
                with self.study.trial(self.space, self.config.tune.trials) as trial:
                    if trial is None:
                        break
                    code = self.run_trial(trial)
                    if code < 128:  # A trial that a signal ended continues with the search.
                        self.study.tell(trial, code)
            self.finish()
            if interruption.number is not None:
                self.say("run the same command with the same tune.study to continue the search")
                return interruption.exit_code
        return 0 if self.study.best() else 1

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def is_timed_out(self) -> bool:
        return time.perf_counter() - BEGAN > (self.config.tune.timeout or float("inf"))

    def tools(self) -> tuple[Any, Any]:
        """Builds Optuna's sampler and pruner."""
        from .app.config.instantiate import build

        if importlib.util.find_spec("optuna") is None:
            raise ConfigError("a search needs Optuna; install it with pip install 'node_fit[tune]'.")
        settings = self.config.tune
        # Optuna's other modules open databases and files.
        return tuple(
            build(settings[key], f"tune.{key}", extensions=[f"optuna.{key}s"]) for key in ("sampler", "pruner")
        )

    def check(self) -> dict[str, Any]:
        """Checks the settings that every trial needs, before any trial runs.

        **Returns:** what all trials share: config values and digests of the data, by key.
        """
        from .app.run_directory import fingerprint_data

        self.tools()
        self.check_numbers()
        self.check_foreign()
        examples = {parameter.key: parameter.examples() for parameter in self.space}
        first = {key: words[0] for key, words in examples.items()}
        splits = self.build_trial(first).load()
        for key, words in examples.items():
            for word in words:
                self.build_trial(first | {key: word})
        if splits.validation is None:
            raise ConfigError(
                "a search ranks its trials on validation data, and there are none; set some aside, for example with "
                "data.split.validation=0.2."
            )
        facts = flatten(OmegaConf.to_container(self.compose_trial([]), resolve=True))
        digests = {name: fingerprint_data(part)["sha256"] for name, part in splits.named().items() if name != "test"}
        return {
            "tune.space": {each.key: {each.kind: list(each.values)} for each in self.space},
            **{key: value for key, value in facts.items() if key not in FREE_KEYS},
            **{f"the {name} data": digest for name, digest in digests.items()},
        }

    def check_foreign(self) -> None:
        """Refuses a directory with a file that the search would replace, and that no search has written."""
        others = [path for name in ("best.sh", "leaderboard.csv") if (path := self.path / name).exists()]
        if others and not (self.path / "study.journal").exists():
            raise ConfigError(
                f"{others[0]} is in the way, and no search has written it; choose another tune.study, or move it."
            )

    def check_numbers(self) -> None:
        """Refuses a trial count or a timeout that is out of range."""
        trials, timeout = self.config.tune.trials, self.config.tune.timeout
        if not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
            raise ConfigError(f"tune.trials must be an integer of at least 1, got {trials!r}.")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ConfigError(f"tune.timeout must be a positive number of seconds or null, got {timeout!r}.")

    def build_trial(self, words: Mapping[str, str]) -> Table:
        """Builds all objects of a trial's config, as its run will, and returns its table.

        **Raises:** `ConfigError` if an object can't be built.
        """
        from .app.config.build import build_parts, check_top
        from .runtime.placement import scope

        try:
            config = self.compose_trial(list(words.values()))
            check_top(config)
            with scope(config.precision):
                return build_parts(config).data
        except Exception as error:
            sentence = explain(error)
            if sentence is None:
                raise
            raise ConfigError(f"tune.space: {sentence}") from error

    def compose_trial(self, words: Sequence[str]) -> DictConfig:
        """Composes the config of a trial, without Hydra's own node."""
        config = self.loader.load_configuration("config", [*self.fixed, *words], RunMode.RUN)
        with open_dict(config):
            config.pop("hydra")
        return config

    def run_trial(self, trial: Trial) -> int:
        """Starts or resumes the run in the trial's directory, and returns its exit code."""
        from .app.application import run_command

        place = [
            f"hydra.sweep.dir={quote_override(self.path)}",
            f"hydra.sweep.subdir='{trial.number}'",
            "hydra.mode=MULTIRUN",
        ]
        words = [*self.fixed, *trial.words, "resume=auto", *place]
        config = self.loader.load_configuration("config", words, RunMode.RUN)
        with open_dict(config):
            config.hydra.job.num = trial.number
            config.hydra.job.id = str(trial.number)
        done = run_job(
            lambda config: run_command(config, self.imported, self.tracebacks, trial),
            config,
            "hydra.sweep.dir",
            "hydra.sweep.subdir",
            HydraContext(self.loader, Callbacks()),
        )
        return done.return_value

    def finish(self) -> None:
        """Writes and shows the leaderboard, and the command that repeats the best trial."""
        if not self.study.records():
            return
        publish(self.path, self.study.rows(), report=self.config.report)
        best = self.study.best()
        if best is None:
            self.say("no trial has completed yet")
            return
        folders = [word for path in self.command["config_dirs"] for word in ("--config-dir", path)]
        words = [*folders, *self.fixed, *(each.suggest(Replay(best.params)) for each in self.space)]
        found = f"trial {best.number} of {len(self.study.records())}: validation NRMSE {format_number(best.value)}"
        script = [
            f"# {found}. Repeat it with sh {self.path / 'best.sh'}; you can add overrides.",
            f"cd {shlex.quote(os.getcwd())} || exit",
            f'exec {shlex.quote(sys.executable)} -m node_fit {shlex.join(words)} "$@"',
        ]
        write_file(self.path / "best.sh", "".join(f"{line}\n" for line in script).encode())
        self.say(f"best: {found}\nrepeat it with: python -m node_fit {shlex.join(words)}")


class Replay:
    """A stand-in for an Optuna trial that returns earlier suggestions."""

    def __init__(self, values: dict[str, Any]):
        self.values = values

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return self.values[name]

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return self.values[name]

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        return self.values[name]


def key_of(word: str) -> str:
    """The key that an override sets."""
    return word.lstrip("+~").partition("=")[0].partition("@")[0]


if __name__ == "__main__":
    main()
