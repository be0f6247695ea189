"""One job: a composed config in, a run directory out."""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from jaxtyping import PyTree
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from . import BEGAN
from .baselines import baselines
from .checkpoint import Checkpoints
from .composition import explain
from .configuration import build
from .console import Display, counted, make_console, print_constants, print_scores
from .diagnosis import diagnose
from .disk import explain_disk
from .evaluation import score
from .fitting import TIGHT, Fit, with_tolerance
from .memory import explain_memory
from .model import NeuralODE
from .model_file import describe
from .observer import Moment, Record, Silent, Template
from .precision import carry, dtype_of, find_device, scope
from .resuming import command_record
from .run_directory import RunDirectory, RunExists
from .simulation import Simulated, simulate_splits
from .solver import Solver
from .splits import Splits
from .targets import ConfigError

LOG = logging.getLogger(__name__)
EXIT = {"completed": 0, "stopped_early": 0, "failed": 1}


def run(config: DictConfig, imported: float, tracebacks: bool) -> int:
    """Runs a job and writes its directory.

    **Arguments:**

    - `config`: composed by Hydra.
    - `imported`: seconds that the imports took.
    - `tracebacks`: whether errors come with one.

    **Returns:** the exit code: 0, 1 if it failed, 130 or 143 if a signal ended it.
    """
    hydra = HydraConfig.get()
    files = RunDirectory(hydra.runtime.output_dir)
    console = make_console()
    # The first job of a process also pays for the imports.
    began = BEGAN if job_number() in (None, 0) else time.perf_counter()
    try:
        with files.locked():
            return Job(config, files, console, began, imported).run()
    except Exception as error:  # One job's failure must not end the others of a multirun.
        expected = isinstance(error, (ValueError, OSError))
        reason = str(error) if expected else f"{type(error).__name__}: {error} (verbose=true shows where)"
        reason = explain_memory(error) or explain(error) or reason
        if isinstance(error, OSError):
            reason = explain_disk(error, files.path)
        if tracebacks or config.verbose:
            traceback.print_exc()
        make_console(stderr=True).print(f"error: {reason}", style="red", soft_wrap=True, markup=False)
        if not (config.resume or isinstance(error, RunExists)):  # whose summary is still that of where it was
            with suppress(OSError):  # such as a full disk, of which the error has told
                files.write_summary({"status": "failed", "reason": reason, "overrides": list(hydra.overrides.task)})
        return 1


class Job:
    """A run under way."""

    def __init__(self, config: DictConfig, files: RunDirectory, console: Console, began: float, imported: float):
        self.config = config
        self.files = files
        self.console = console
        self.began = began
        self.imported = imported
        self.signal: int | None = None

    def run(self) -> int:
        check_top(self.config)
        if not self.config.resume:
            self.files.check_unused()
        with scope(self.config.precision):
            find_device(self.config.device)
            extensions = list(self.config.extensions)
            parts = {
                key: build(self.config[key], key, extensions=extensions)
                for key in ("data", "field", "start", "observation", "solver", "optimizer", "recipe")
            }
            train = build(self.config.train, "train", extensions=extensions)
            splits: Splits = parts["data"].load()
            if self.config.resume:
                self.files.check_data(splits.named())
            else:
                OmegaConf.save(self.config, self.files.path / "config.yaml", resolve=True)
                self.files.write_record(command_record(HydraConfig.get()), splits.named())
            self.announce(splits)
            with Display(self.console) as display, signals(self.interrupt):
                watcher = Watcher(self, display)
                fit: Fit = train(
                    splits.train,
                    validation=splits.validation,
                    field=parts["field"],
                    hidden=hidden_states(self.config),
                    start=parts["start"],
                    observation=parts["observation"],
                    optimizer=parts["optimizer"],
                    recipe=parts["recipe"],
                    solver=parts["solver"],
                    evaluation=self.evaluation(parts["solver"]),
                    log=parts["data"].log,
                    bounds=parts["data"].bounds,
                    precision=self.config.precision,
                    device=self.config.device,
                    seed=self.config.seed,
                    observer=watcher,
                )
                watcher.close()
            return self.finish(fit, splits)

    def evaluation(self, solver: Solver) -> Solver:
        tight = TIGHT[self.config.precision]
        chosen = build(self.config.evaluation, "evaluation")
        rtol = chosen["rtol"] or tight
        return replace(with_tolerance(solver, rtol), atol=chosen["atol"] or rtol / 100)

    def announce(self, splits: Splits) -> None:
        if job_number() is not None:
            swept = [word for word in HydraConfig.get().overrides.task if word not in sys.argv]
            self.console.rule(Text(f"job {job_number()}: {' '.join(swept)}"), align="left")
        sizes = ", ".join(f"{name} {counted(int(part.scored.sum()), 'row')}" for name, part in splits.named().items())
        self.console.print(
            f"node_fit: {counted(len(splits.train.states), 'state')}, "
            f"{counted(len(splits.train.inputs), 'input')}; {sizes}; "
            f"{self.config.precision} on {find_device(self.config.device).platform}",
            soft_wrap=True,
        )

    def interrupt(self, number: int) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        self.console.print("stopping at the end of this chunk; once more to stop at once", soft_wrap=True)

    def finish(self, fit: Fit, splits: Splits) -> int:
        named = splits.named()
        fit.save(self.files.model)
        simulated = simulate_splits(fit.model, named)
        self.files.write_predictions(named, simulated.at_rows)
        diagnosis = diagnose(fit.status, fit.history, named, simulated.at_rows)
        summary = self.summary(fit, named, simulated) | {"diagnosis": asdict(diagnosis)}
        self.draw(fit, named, simulated)
        summary["seconds"]["total"] = round(time.perf_counter() - self.began, 3)
        self.files.write_summary(summary)
        print_scores(self.console, summary)
        print_constants(self.console, summary["constants"])
        self.console.print(f"start: {summary['start']}", soft_wrap=True, markup=False)
        self.console.print(f"{fit.status}: {fit.reason}", soft_wrap=True, markup=False)
        self.console.print(diagnosis.sentence, soft_wrap=True, markup=False)
        self.console.print(f"run: {self.files.path}", soft_wrap=True, markup=False)
        return EXIT.get(fit.status, 128 + (self.signal or signal.SIGTERM))

    def summary(self, fit: Fit, splits: dict[str, Any], simulated: Simulated) -> dict[str, Any]:
        simple = {name: baselines(splits["train"], part) for name, part in splits.items()}
        every = ("train", "validation", "test")
        scores = {name: score(part, simulated.at_rows[name]).as_dict() for name, part in splits.items()}
        return {
            "status": fit.status,
            "reason": fit.reason,
            "steps": fit.steps,
            "compiles": fit.compiles,
            "seconds": {
                "import": round(self.imported, 3),
                "compile": round(fit.compile_seconds, 3),
                "train": round(fit.train_seconds, 3),
                "total": None,
            },
            "precision": self.config.precision,
            "device": find_device(self.config.device).device_kind,
            "parameters": fit.parameters,
            "start": fit.model.start.given,
            "constants": fit.model.constants(),
            "metrics": {name: scores.get(name) for name in every},
            "baselines": {
                kind: {name: simple[name][kind].as_dict() if name in simple else None for name in every}
                for kind in ("mean", "persistence", "linear")
            },
            "overrides": list(HydraConfig.get().overrides.task),
        }

    def draw(self, fit: Fit, splits: dict[str, Any], simulated: Simulated) -> None:
        """The pictures; a run is worth keeping without them."""
        try:
            from .plots import Curves, plot_fit, plot_loss, plot_phase

            self.files.plots.mkdir(exist_ok=True)
            curves = Curves(splits, simulated.dense)
            plot_loss(self.files.read_metrics(), self.files.plots / "loss.png")
            plot_fit(curves, self.files.plots / "fit.png")
            if len(fit.model.states) == 2 and fit.model.is_measured:
                plot_phase(curves, fit.model.derivative, self.files.plots / "phase.png")
        except Exception as error:
            LOG.warning("the plots were not drawn: %s: %s", type(error).__name__, error)


class Watcher(Silent):
    """Follows a fit: writes its log and checkpoints, shows its progress, and passes signals on."""

    def __init__(self, job: Job, display: Display):
        self.job = job
        self.display = display
        self.checkpoints: Checkpoints  # made in `begin`, once the model is sound
        self.before = 0.0
        self.steps = 0

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        describe(model, "model", {})  # Refuses what the model file can't hold, before anything is trained.
        self.checkpoints = Checkpoints(self.job.files.checkpoints)
        for note in notes:
            self.job.console.print(note, soft_wrap=True, markup=False)

    def resume(self, template: Template) -> Moment | None:
        config = self.job.config

        def place(tree: PyTree) -> PyTree:
            return carry(tree, dtype_of(config.precision), find_device(config.device))

        self.checkpoints.check_room(template(0, 0))
        moment = self.checkpoints.restore(template, place, config.resume_from) if config.resume else None
        if config.resume and moment is None:
            raise ConfigError(f"resume={config.resume} holds no checkpoint yet; start the run again.")
        step = -1 if moment is None else moment.step
        rows = self.job.files.begin_metrics(step)
        self.before = rows[-1]["seconds"] if rows else 0.0
        if moment is not None:
            self.job.console.print(f"going on from step {step}")
        return moment

    def compile_stage(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def observe(self, record: Record, moment: Moment) -> str | None:
        record = replace(record, seconds=record.seconds + self.before)
        self.job.files.add_metrics(record)
        self.checkpoints.save(moment, record.train_loss if record.validation_loss is None else record.validation_loss)
        self.display.show(record, record.step - moment.offset)
        if self.job.signal is None:
            return None
        return f"by {signal.Signals(self.job.signal).name}; go on with resume={self.job.files.path}"

    def close(self) -> None:
        self.checkpoints.close()


def hidden_states(config: DictConfig) -> int | list[str]:
    """The config's `hidden`, a number or names.

    **Raises:** `ConfigError` if it is neither.
    """
    hidden = OmegaConf.to_container(config.hidden) if OmegaConf.is_config(config.hidden) else config.hidden
    if isinstance(hidden, int) and not isinstance(hidden, bool):
        return hidden
    if isinstance(hidden, list) and all(isinstance(name, str) for name in hidden):
        return hidden
    raise ConfigError(f"hidden must be a number of states or a list of their names, got {hidden!r}.")


def job_number() -> int | None:
    """The number of this job in a multirun; None outside of one."""
    hydra = HydraConfig.get()
    return hydra.job.num if hydra.mode == RunMode.MULTIRUN else None


def check_top(config: DictConfig) -> None:
    """Refuses plain keys at the top of the config that have the wrong type or value."""
    for key, choices in (
        ("precision", ("x32", "x64")),
        ("device", ("auto", "cpu", "gpu")),
        ("resume_from", ("latest", "best")),
    ):
        if config[key] not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {config[key]!r}.")
    if not isinstance(config.seed, int) or isinstance(config.seed, bool) or config.seed < 0:
        raise ConfigError(f"seed must be an integer of at least 0, got {config.seed!r}.")


@contextmanager
def signals(handler: Callable[[int], None]):
    """Hands SIGINT and SIGTERM to `handler` in a block of code."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _: handler(number)) for kind in kinds]
    try:
        yield
    finally:
        for kind, old in zip(kinds, before, strict=True):
            signal.signal(kind, old)
