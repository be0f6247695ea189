"""The search over config keys: its space, its trials, which process runs which, and trials to continue."""

import importlib
import json
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..storage.disk import lock as locked
from .config.targets import ConfigError, nearest_name
from .leaderboard import row
from .run_logger import Interruption

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


@dataclass(frozen=True)
class Parameter:
    """A config key that a search varies.

    - `key`: the full key, such as `penalty.ridge`.
    - `kind`: `float`, `log` (a float on a logarithmic scale), `int`, or `choice`.
    - `values`: the lowest and the highest value, both included; or the choices.
    """

    key: str
    kind: str
    values: tuple

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


def read_space(node: Any) -> list[Parameter]:
    """Reads the parameters of `tune.space`, which nests like the config or has dotted keys.

    **Raises:** `ConfigError` if it is malformed or empty.
    """
    space = list(parameters(node or {}, ""))
    if not space:
        raise ConfigError("tune.space is empty; name a key, as in '+tune.space.penalty.ridge={log: [1e-6, 1]}'.")
    return space


def parameters(node: Any, key: str) -> Iterator[Parameter]:
    if not isinstance(node, dict):
        raise ConfigError(f"tune.space.{key} must be {FORMS}, got {node!r}.")
    for name, child in node.items():
        if isinstance(child, dict):
            yield from parameters(child, f"{key}.{name}" if key else str(name))
        elif len(node) == 1 and name in PARAMETER_KINDS and isinstance(child, list):
            yield Parameter(key, name, tuple(child))
        elif isinstance(child, list) and key:
            raise ConfigError(
                f"tune.space.{key}.{name}: {name} is not a kind of range; {nearest_name(name, PARAMETER_KINDS)}"
            )
        else:
            raise ConfigError(f"tune.space.{key and f'{key}.'}{name} must be {FORMS}, got {child!r}.")


def word(value: Any) -> str:
    """Formats a value for Hydra's command line."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join(map(word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{word(child)}' for name, child in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)


STUDY_LOG = logging.getLogger(__name__)
# The search abandons a trial after this many starts without progress in between.
MAX_STARTS = 3


class Trial:
    """A trial in this process.

    - `number`: the trial's number in its study, which is also the name of its run directory.
    - `words`: the overrides that set its values.
    """

    def __init__(self, trial: Any, words: Sequence[str], directory: Path, interruption: Interruption):
        self.trial = trial
        self.number: int = trial.number
        self.words = list(words)
        self.directory = directory
        self.interruption = interruption
        self.reported = set(optuna_record(trial).intermediate_values)

    def judge(self, step: int, loss: float) -> str | None:
        """Takes the validation loss at a chunk's end; returns the reason to end the run, or `None` to continue."""
        if step not in self.reported:  # A process may report a step and be killed before it saves that step.
            self.trial.report(loss, step)
        if not self.trial.should_prune():
            return None
        return f"by the search at step {step}, with a validation loss of {loss:.3g}"


class Study:
    """The trials of a search, in a directory that several processes may share.

    **Arguments:**

    - `path`: the directory.
    - `sampler`, `pruner`: Optuna's; with `pruner=None`, nothing is pruned.
    - `interruption`: the signal that may end a trial.
    """

    def __init__(self, path: Path, sampler: Any, pruner: Any, interruption: Interruption):
        optuna = importlib.import_module("optuna")  # An optional dependency, which type checkers may not find.
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
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from starting or taking over a trial within this block."""
        with locked(self.path / ".lock", wait=True):
            yield

    def check_facts(self, facts: Mapping[str, Any]) -> None:
        """Stores what all trials share, or checks it against the stored values.

        **Arguments:** `facts`: plain values by key.

        **Raises:** `ConfigError` that names the first key that differs.
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
    def trial(self, space: Sequence[Parameter], most: int) -> Iterator[Trial | None]:
        """Yields a trial to run: an interrupted one, else a new one, or `None` if there are `most` trials already."""
        with ExitStack() as held:
            with self.exclusive():
                found = self.unfinished(held) or self.create(held, most)
                words = [parameter.suggest(found) for parameter in space] if found else []
            yield found and Trial(found, words, self.directory(found.number), self.interruption)

    def unfinished(self, held: ExitStack) -> Any:
        """An unfinished trial that no process holds the lock of, or `None`."""
        for record in self.records(self.optuna.trial.TrialState.RUNNING):
            try:
                has_locks = held.enter_context(self.claim(record.number))
            except BlockingIOError:
                continue
            trial = self.optuna.trial.Trial(self.study, record._trial_id)
            if not has_locks:
                continue
            starts = [*record.user_attrs.get("starts", [0]), len(record.intermediate_values)]
            if starts.count(starts[-1]) <= MAX_STARTS:
                trial.set_user_attr("starts", starts)
                return trial
            STUDY_LOG.warning("trial %d ended its process %d times; the search abandons it", record.number, MAX_STARTS)
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return None

    def create(self, held: ExitStack, most: int) -> Any:
        if self.is_exhausted or len(self.study.trials) >= most:
            return None
        trial = self.study.ask()
        held.enter_context(self.claim(trial.number))
        return trial

    def claim(self, number: int):
        """The lock that the process of a trial holds."""
        self.directory(number).mkdir(exist_ok=True)
        return locked(self.directory(number) / ".trial")

    def directory(self, number: int) -> Path:
        return self.path / str(number)

    def records(self, *states: Any) -> list[Any]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def tell(self, trial: Trial, code: int) -> None:
        """Reports a trial's result to Optuna, from its run's exit code and summary."""
        states = self.optuna.trial.TrialState
        entry = row(trial.directory) if code == 0 else {"status": "failed", "validation_nrmse": None}
        score: float | None = entry["validation_nrmse"]
        with warnings.catch_warnings(action="ignore"):  # Optuna uses the last report as a pruned trial's value.
            if entry["status"] == "pruned":
                self.study.tell(trial.trial, state=states.PRUNED)
            elif score is None or not math.isfinite(score):
                self.study.tell(trial.trial, state=states.FAIL)
            else:
                self.study.tell(trial.trial, score)

    def best(self) -> Any:
        """The record of the completed trial with the lowest score, or `None` if no trial has completed."""
        return min(self.records(self.optuna.trial.TrialState.COMPLETE), key=lambda each: each.value, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """The leaderboard rows of all trials."""
        states = self.optuna.trial.TrialState
        instead = {states.RUNNING: "running", states.FAIL: "failed"}
        return [row(self.directory(record.number), instead.get(record.state)) for record in self.records()]


def optuna_record(trial: Any) -> Any:
    """Optuna's record of a trial."""
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
