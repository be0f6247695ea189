"""The trials of a search: who runs which, what they came to, and what is left of those that were ended."""

import importlib
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .disk import locked
from .interruption import Interruption
from .leaderboard import row
from .space import Parameter
from .targets import ConfigError

LOG = logging.getLogger(__name__)
# A trial that ends its process so many times, and gets no further in between, is given up.
MOST_STARTS = 3


class Trial:
    """A trial that this process runs.

    - `number`: in its study; its run's directory has that name.
    - `words`: the overrides that set its values.
    """

    def __init__(self, trial: Any, words: Sequence[str], directory: Path, interruption: Interruption):
        self.trial = trial
        self.number: int = trial.number
        self.words = list(words)
        self.directory = directory
        self.interruption = interruption
        self.reported = set(own_record(trial).intermediate_values)

    def judge(self, step: int, loss: float) -> str | None:
        """Takes the validation loss at a chunk's end. Why the run is to end there, if it is."""
        if step not in self.reported:  # by a process that was killed before it had saved the step
            self.trial.report(loss, step)
        if not self.trial.should_prune():
            return None
        return f"given up by the search at step {step}, with a validation loss of {loss:.3g}"


class Study:
    """The trials of a search, kept in a directory that several processes may share.

    **Arguments:**

    - `path`: the directory.
    - `sampler`, `pruner`: Optuna's; a pruner that is None prunes nothing.
    - `interruption`: what may end a trial.
    """

    def __init__(self, path: Path, sampler: Any, pruner: Any, interruption: Interruption):
        optuna = importlib.import_module("optuna")  # an extra, which a type checker need not find
        journals = importlib.import_module("optuna.storages.journal")

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna
        self.path = path
        self.interruption = interruption
        journal = str(path / "study.journal")
        lock = journals.JournalFileSymlinkLock(journal)
        mend(Path(journal), lock)
        with self.alone():
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(journals.JournalFileBackend(journal, lock)),
                study_name="node_fit",
                sampler=sampler,
                pruner=pruner or optuna.pruners.NopPruner(),
                direction="minimize",
                load_if_exists=True,
            )
        self.is_exhausted = False
        self.study.stop = self.stop  # Optuna's own knows only its own loop.
        if self.study.trials:  # else a sampler with a seed would begin with them again
            sampler.reseed_rng()

    def stop(self) -> None:
        """For samplers that have tried all there is."""
        self.is_exhausted = True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process begins or takes over a trial within this block."""
        with locked(self.path / ".lock", wait=True):
            yield

    def settle(self, facts: Mapping[str, Any]) -> None:
        """Keeps what all trials have in common, or refuses what differs from it.

        **Arguments:** `facts`: plain values by their keys.

        **Raises:** `ConfigError` that names the first that differs.
        """
        with self.alone():
            before = self.study.user_attrs.get("facts")
            if before is None:
                self.study.set_user_attr("facts", dict(facts))
                return
        now = json.loads(json.dumps(facts))
        for key in [*before, *(set(now) - set(before))]:
            if before.get(key) != now.get(key):
                raise ConfigError(
                    f"the trials in {self.path} began with {key}={before.get(key)}, now it is {now.get(key)}, and "
                    "scores would not compare; bring that back, or choose another tune.study."
                )

    @contextmanager
    def trial(self, space: Sequence[Parameter], most: int) -> Iterator[Trial | None]:
        """A trial for this process to run: one that was ended, or else a new one, until there are `most`."""
        with ExitStack() as held:
            with self.alone():
                found = self.left(held) or self.new(held, most)
                words = [parameter.suggest(found) for parameter in space] if found else []
            yield found and Trial(found, words, self.directory(found.number), self.interruption)

    def left(self, held: ExitStack) -> Any:
        """A trial whose process has ended before it: nobody holds its lock."""
        for record in self.records(self.optuna.trial.TrialState.RUNNING):
            try:
                has_locks = held.enter_context(self.claim(record.number))
            except BlockingIOError:
                continue
            trial = self.optuna.trial.Trial(self.study, record._trial_id)
            if not has_locks:
                continue
            starts = [*record.user_attrs.get("starts", [0]), len(record.intermediate_values)]
            if starts.count(starts[-1]) <= MOST_STARTS:
                trial.set_user_attr("starts", starts)
                return trial
            LOG.warning("trial %d ended its process %d times and is given up", record.number, MOST_STARTS)
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return None

    def new(self, held: ExitStack, most: int) -> Any:
        if self.is_exhausted or len(self.study.trials) >= most:
            return None
        trial = self.study.ask()
        held.enter_context(self.claim(trial.number))
        return trial

    def claim(self, number: int):
        """The lock of whoever runs a trial."""
        self.directory(number).mkdir(exist_ok=True)
        return locked(self.directory(number) / ".trial")

    def directory(self, number: int) -> Path:
        return self.path / str(number)

    def records(self, *states: Any) -> list[Any]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def tell(self, trial: Trial, code: int) -> None:
        """Notes what a trial came to, from its run's exit code and summary."""
        states = self.optuna.trial.TrialState
        entry = row(trial.directory) if code == 0 else {"status": "failed", "validation_nrmse": None}
        score: float | None = entry["validation_nrmse"]
        with warnings.catch_warnings(action="ignore"):  # a pruned trial's value is that of its last report
            if entry["status"] == "pruned":
                self.study.tell(trial.trial, state=states.PRUNED)
            elif score is None or not math.isfinite(score):
                self.study.tell(trial.trial, state=states.FAIL)
            else:
                self.study.tell(trial.trial, score)

    def best(self) -> Any:
        """The record of the completed trial with the lowest score; None if none is completed."""
        return min(self.records(self.optuna.trial.TrialState.COMPLETE), key=lambda each: each.value, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """The lines of the leaderboard, of all trials."""
        states = self.optuna.trial.TrialState
        instead = {states.RUNNING: "running", states.FAIL: "failed"}
        return [row(self.directory(record.number), instead.get(record.state)) for record in self.records()]


def own_record(trial: Any) -> Any:
    """What Optuna keeps of a trial."""
    return trial.study.trials[trial.number]


def mend(journal: Path, lock: Any) -> None:
    """Drops a last line that a full disk or a kill cut short: Optuna would join the next one to it and read neither."""
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
