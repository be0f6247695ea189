"""The command `python -m node_fit.tune`: searches for the config values that score best on validation data."""

if __name__ == "__main__":
    from .startup import start_command

    start_command()  # before anything heavy is imported

import importlib
import importlib.util
import json
import logging
import math
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from .app.config.composition import ConfigError, explain, nearest_name
from .app.console import format_number, make_console
from .app.launching import launch, print_error, wants_tracebacks
from .app.leaderboard import JobRow, publish, row
from .app.run_directory import command_record, flatten, plain_runtime, quote_override
from .app.run_logger import Interruption
from .data.table_source import Table
from .runtime.serialization import Json, is_json, is_list
from .startup import BEGAN
from .storage.files import lock as locked
from .storage.files import write_file

PARAMETER_KINDS = ("float", "log", "int", "choice")
FORMS = "{float: [low, high]}, {log: [low, high]}, {int: [low, high]} or {choice: [one, another]}"
# Strings that Hydra reads unchanged as a value.
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z_][\w./-]*", re.IGNORECASE)


@runtime_checkable
class Suggests(Protocol):
    """The part of an Optuna trial that suggests values."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int) -> int: ...
    def suggest_categorical(self, name: str, choices: list[str]) -> str: ...


@runtime_checkable
class OptunaRecord(Protocol):
    """The attributes of Optuna's trial records that a search reads."""

    number: int
    value: float | None
    params: Json
    user_attrs: Json
    intermediate_values: dict[int, float]
    state: object


@runtime_checkable
class OptunaTrial(Suggests, Protocol):
    """The part of an Optuna trial that a search uses."""

    study: Any

    @property
    def number(self) -> int: ...
    def report(self, value: float, step: int) -> None: ...
    def should_prune(self) -> bool: ...


@runtime_checkable
class Sampler(Protocol):
    """The part of Optuna's samplers that a search uses."""

    def reseed_rng(self) -> None: ...


@dataclass(frozen=True)
class Parameter:
    """A config key that a search varies.

    - `key`: the full key, such as `penalty.ridge`.
    - `kind`: `float`, `log` (a float on a logarithmic scale), `int`, or `choice`.
    - `values`: the lowest and highest value, both included; or the choices.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def __post_init__(self):
        place, shown = f"tune.space.{self.key}", f"[{', '.join(map(str, self.values))}]"
        if self.kind == "choice":
            if not self.values:
                raise ConfigError(f"{place}: choice must list at least one value, got {shown}.")
            return
        wanted = int if self.kind == "int" else (int, float)
        if len(self.values) != 2 or not all(isinstance(x, wanted) and not isinstance(x, bool) for x in self.values):
            noun = "integers" if self.kind == "int" else "numbers"
            raise ConfigError(f"{place}: {self.kind} must give two {noun}, [low, high], got {shown}.")
        low, high = self.values
        if not low <= high or (self.kind == "log" and low <= 0):
            above = " above 0" if self.kind == "log" else ""
            raise ConfigError(f"{place}: {self.kind} must give [low, high]{above} with low at most high, got {shown}.")

    def suggest(self, trial: Suggests) -> str:
        """Returns an override with the value that Optuna suggests."""
        if self.kind == "choice":
            return f"{self.key}={trial.suggest_categorical(self.key, [word(value) for value in self.values])}"
        low, high = self.values
        if self.kind == "int":
            return f"{self.key}={trial.suggest_int(self.key, low, high)}"
        return f"{self.key}={trial.suggest_float(self.key, low, high, log=self.kind == 'log')!r}"

    def examples(self) -> list[str]:
        """Returns an override for each choice, or for both ends of the range."""
        return [f"{self.key}={word(value)}" for value in self.values]


def read_space(node: object) -> list[Parameter]:
    """Reads the parameters of `tune.space`, which nests like the config or has dotted keys.

    **Raises:** `ConfigError` if it is malformed or empty.
    """
    space = list(parameters(node or {}, ""))
    if not space:
        raise ConfigError("tune.space is empty; name a key, as in '+tune.space.penalty.ridge={log: [1e-6, 1]}'.")
    return space


def parameters(node: object, key: str) -> Iterator[Parameter]:
    if not is_json(node):
        raise ConfigError(f"tune.space.{key} must be {FORMS}, got {node!r}.")
    for name, child in node.items():
        if is_json(child):
            yield from parameters(child, f"{key}.{name}" if key else str(name))
        elif len(node) == 1 and name in PARAMETER_KINDS and is_list(child):
            yield Parameter(key, name, tuple(child))
        elif is_list(child) and key:
            raise ConfigError(
                f"tune.space.{key}.{name}: {name} is not a kind of range; {nearest_name(name, PARAMETER_KINDS)}"
            )
        else:
            raise ConfigError(f"tune.space.{key and f'{key}.'}{name} must be {FORMS}, got {child!r}.")


def word(value: object) -> str:
    """Formats a value for Hydra's command line."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if is_list(value):
        return f"[{','.join(map(word, value))}]"
    if is_json(value):
        return f"{{{','.join(f'{name}:{word(child)}' for name, child in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)


# A record's trial id in the storage, for which Optuna has no public name.
ID_IN_STORAGE = "_trial_id"
STUDY_LOG = logging.getLogger(__name__)
# The search abandons a trial after this many starts without progress in between.
MAX_STARTS = 3


class Trial:
    """A trial in this process.

    - `number`: the trial's number in its study, and the name of its run directory.
    - `words`: the overrides that set its values.
    """

    def __init__(self, trial: OptunaTrial, words: Sequence[str], directory: Path, interruption: Interruption):
        self.trial = trial
        self.number: int = trial.number
        self.words = list(words)
        self.directory = directory
        self.interruption = interruption
        self.reported = set(optuna_record(trial).intermediate_values)

    def judge(self, step: int, loss: float) -> str | None:
        """Reports the validation loss of a chunk; returns the reason to end the run, or `None` to continue."""
        if step not in self.reported:  # A process can report a step and be killed before saving it.
            self.trial.report(loss, step)
        if not self.trial.should_prune():
            return None
        return f"by the search at step {step}, with a validation loss of {loss:.3g}"


class Study:
    """The trials of a search, in a directory that several processes can share.

    **Arguments:**

    - `path`: the directory.
    - `sampler`, `pruner`: those of Optuna; `pruner=None` disables pruning.
    - `interruption`: the signal that can end a trial.
    """

    def __init__(self, path: Path, sampler: Sampler, pruner: object, interruption: Interruption):
        optuna = importlib.import_module("optuna")  # An optional dependency that type checkers can miss.
        journals = importlib.import_module("optuna.storages.journal")

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna
        self.path = path
        self.interruption = interruption
        journal = str(path / "study.journal")
        lock = journals.JournalFileSymlinkLock(journal)
        repair_journal(Path(journal), lock)
        with self.exclusive():
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(journals.JournalFileBackend(journal, lock)),
                study_name="node_fit",
                sampler=sampler,
                pruner=pruner or optuna.pruners.NopPruner(),
                direction="minimize",
                load_if_exists=True,
            )
        self.is_exhausted = False
        self.study.stop = self.stop  # Optuna's method only works in Optuna's own loop.
        if self.study.trials:  # Otherwise a seeded sampler would repeat its first suggestions.
            sampler.reseed_rng()

    def stop(self) -> None:
        """Ends the search; samplers call this when they have tried all values."""
        self.is_exhausted = True

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """Keeps other processes from starting or taking over a trial within this block."""
        with locked(self.path / ".lock", wait=True):
            yield

    def check_facts(self, facts: Mapping[str, object]) -> None:
        """Stores the facts common to all trials, or checks them against the stored values.

        **Arguments:** `facts`: plain values by key.

        **Raises:** `ConfigError` with the first key that differs.
        """
        with self.exclusive():
            before = self.study.user_attrs.get("facts")
            if before is None:
                self.study.set_user_attr("facts", dict(facts))
                return
        now = json.loads(json.dumps(facts))
        for key in [*before, *(set(now) - set(before))]:
            if before.get(key) != now.get(key):
                raise ConfigError(
                    f"the trials in {self.path} ran with {key}={before.get(key)}, but now it is {now.get(key)}, so "
                    "scores would not be comparable; restore the old value, or choose another tune.study."
                )

    @contextmanager
    def trial(self, space: Sequence[Parameter], most: int) -> Generator[Trial | None]:
        """Yields a trial to run: an interrupted one, else a new one, or `None` if `most` trials exist."""
        with ExitStack() as held:
            with self.exclusive():
                trial = self.find_unfinished(held) or self.create(held, most)
                words = [parameter.suggest(trial) for parameter in space] if trial else []
            yield None if trial is None else Trial(trial, words, self.directory(trial.number), self.interruption)

    def find_unfinished(self, held: ExitStack) -> OptunaTrial | None:
        """Returns an unfinished trial that no process has locked, or `None`."""
        for record in self.records(self.optuna.trial.TrialState.RUNNING):
            try:
                has_locks = held.enter_context(self.claim(record.number))
            except BlockingIOError:
                continue
            trial = self.optuna.trial.Trial(self.study, getattr(record, ID_IN_STORAGE))
            if not has_locks:
                continue
            starts = [*record.user_attrs.get("starts", [0]), len(record.intermediate_values)]
            if starts.count(starts[-1]) <= MAX_STARTS:
                trial.set_user_attr("starts", starts)
                return trial
            STUDY_LOG.warning("trial %d ended its process %d times; the search abandons it", record.number, MAX_STARTS)
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return None

    def create(self, held: ExitStack, most: int) -> OptunaTrial | None:
        if self.is_exhausted or len(self.study.trials) >= most:
            return None
        trial = self.study.ask()
        held.enter_context(self.claim(trial.number))
        return trial

    def claim(self, number: int):
        """Returns the lock that a trial's process holds."""
        self.directory(number).mkdir(exist_ok=True)
        return locked(self.directory(number) / ".trial")

    def directory(self, number: int) -> Path:
        return self.path / str(number)

    def records(self, *states: object) -> list[OptunaRecord]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def tell(self, trial: Trial, code: int) -> None:
        """Reports a trial's result to Optuna, from its run's exit code and summary."""
        states = self.optuna.trial.TrialState
        entry: Mapping[str, Any] = row(trial.directory) if code == 0 else {"status": "failed"}
        score: float | None = entry.get("validation_nrmse")
        with warnings.catch_warnings(action="ignore"):  # Optuna uses the last report as a pruned trial's value.
            if entry["status"] == "pruned":
                self.study.tell(trial.trial, state=states.PRUNED)
            elif score is None or not math.isfinite(score):
                self.study.tell(trial.trial, state=states.FAIL)
            else:
                self.study.tell(trial.trial, score)

    def best(self) -> OptunaRecord | None:
        """Returns the record of the completed trial with the lowest score, or `None` if none has completed."""
        return min(
            self.records(self.optuna.trial.TrialState.COMPLETE), key=lambda record: record.value or 0.0, default=None
        )

    def rows(self) -> list[JobRow]:
        """Returns the leaderboard rows of all trials."""
        states = self.optuna.trial.TrialState
        replacements = {states.RUNNING: "running", states.FAIL: "failed"}
        return [row(self.directory(record.number), replacements.get(record.state)) for record in self.records()]


def optuna_record(trial: OptunaTrial) -> OptunaRecord:
    """Returns Optuna's record of a trial."""
    return trial.study.trials[trial.number]


def repair_journal(journal: Path, lock: Any) -> None:
    """Drops a truncated last line, left by a full disk or a kill; Optuna would append to it and read neither line."""
    if not journal.is_file():
        return
    lock.acquire()
    try:
        content = journal.read_bytes()
        if not content.endswith(b"\n"):
            with open(journal, "ab") as file:
                file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()


# Keys that can differ between the processes of a search.
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
    """Returns the command-line arguments unchanged if they are valid for a search.

    **Raises:** `ConfigError` for `--multirun`, `resume` and `resume_from`.
    """
    parsed = get_args_parser().parse_known_args(arguments)[0]
    if parsed.multirun:
        raise ConfigError("a search runs its own trials; leave out --multirun.")
    if any(word.startswith(("resume=", "resume_from=")) for word in parsed.overrides):
        raise ConfigError("to continue a search, repeat its command with tune.study=DIRECTORY and without resume.")
    return arguments


class Search:
    """A search in this process.

    **Arguments:**

    - `config`: composed from `conf/tune.yaml`.
    - `imported`, `tracebacks`: passed to each run; see `application.run`.
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
        """Runs trials up to the number or time limit in the config.

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

    def tools(self) -> tuple[Sampler, object]:
        """Builds Optuna's sampler and pruner."""
        from .app.config.build import build

        if importlib.util.find_spec("optuna") is None:
            raise ConfigError("a search needs Optuna; install it with pip install 'node_fit[tune]'.")
        settings = self.config.tune
        # Optuna's other modules open databases and files.
        sampler, pruner = (
            build(settings[key], f"tune.{key}", extensions=[f"optuna.{key}s"]) for key in ("sampler", "pruner")
        )
        return sampler, pruner

    def check(self) -> Json:
        """Checks the settings that every trial needs, before any trial runs.

        **Returns:** the facts common to all trials, by key: config values and digests of the data.
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
            "tune.space": {searched.key: {searched.kind: list(searched.values)} for searched in self.space},
            **{key: value for key, value in facts.items() if key not in FREE_KEYS},
            **{f"the {name} data": digest for name, digest in digests.items()},
        }

    def check_foreign(self) -> None:
        """Rejects a directory with a file that the search would replace but that no search has written."""
        foreign = [path for name in ("best.sh", "leaderboard.csv") if (path := self.path / name).exists()]
        if foreign and not (self.path / "study.journal").exists():
            raise ConfigError(
                f"{foreign[0]} is in the way, and no search has written it; choose another tune.study, or move it."
            )

    def check_numbers(self) -> None:
        """Rejects a trial count or timeout that is out of range."""
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
        job = run_job(
            lambda config: run_command(config, self.imported, self.tracebacks, trial),
            config,
            "hydra.sweep.dir",
            "hydra.sweep.subdir",
            HydraContext(self.loader, Callbacks()),
        )
        return job.return_value

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
        words = [*folders, *self.fixed, *(parameter.suggest(Replay(best.params)) for parameter in self.space)]
        result = f"trial {best.number} of {len(self.study.records())}: validation NRMSE {format_number(best.value)}"
        script = [
            f"# {result}. Repeat it with sh {self.path / 'best.sh'}; you can add overrides.",
            f"cd {shlex.quote(os.getcwd())} || exit",
            f'exec {shlex.quote(sys.executable)} -m node_fit {shlex.join(words)} "$@"',
        ]
        write_file(self.path / "best.sh", "".join(f"{line}\n" for line in script).encode())
        self.say(f"best: {result}\nrepeat it with: python -m node_fit {shlex.join(words)}")


class Replay:
    """A stand-in for an Optuna trial that returns earlier suggestions."""

    def __init__(self, values: Json):
        self.values = values

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return self.values[name]

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return self.values[name]

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        return self.values[name]


def key_of(word: str) -> str:
    """Returns the key that an override sets."""
    return word.lstrip("+~").partition("=")[0].partition("@")[0]


if __name__ == "__main__":
    main()
