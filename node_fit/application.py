"""One job: a composed config in, a run directory out."""

import functools
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from . import BEGAN
from .composition import explain
from .configuration import build
from .console import Display, counted, make_console, print_bands, print_constants, print_scores
from .diagnosis import diagnose
from .disk import explain_disk
from .drawing import DRAWING, Pictures, forgiven
from .fitting import Fit
from .interruption import Interruption
from .kept_programs import keep_programs
from .leaderboard import runs_here
from .memory import explain_memory
from .parts import build_parts, check_top, hidden_states, placement_of
from .plots import Curves, phase_points
from .precision import scope
from .processes import explain_parting, is_first, join, leave
from .resuming import check_same, command_record
from .run_directory import RunDirectory, RunExists
from .setting import TIGHT, with_tolerance
from .simulation import Simulated, simulate_splits
from .solver import Solver
from .splits import Splits
from .summary import summarise
from .watcher import Heed, Trial, Watcher

EXIT = {"completed": 0, "stopped_early": 0, "pruned": 0, "failed": 1}


def run(config: DictConfig, imported: float, tracebacks: bool, trial: Trial | None = None) -> int:
    """Runs a job and writes its directory.

    **Arguments:**

    - `config`: composed by Hydra.
    - `imported`: seconds that the imports took.
    - `tracebacks`: whether errors come with one.
    - `trial`: the search that the job is part of, if it is part of one.

    **Returns:** the exit code: 0, 1 if it failed, 130 or 143 if a signal ended it.
    """
    hydra = HydraConfig.get()
    files = RunDirectory(hydra.runtime.output_dir)
    console = make_console()
    # The first job of a process also pays for the imports.
    first = hydra.mode != RunMode.MULTIRUN or hydra.job.num == 0
    began = BEGAN if first else time.perf_counter()
    first = True
    try:
        first = joined(config)
        if first:
            with files.locked():
                return Job(config, files, console, began, imported, trial).run()
        with TemporaryDirectory() as folder:
            return Job(config, RunDirectory(folder), console, began, imported).assist()
    except Exception as error:  # One job's failure must not end the others of a multirun.
        tell(error, config, files if first else None, list(hydra.overrides.task), tracebacks)
        if explain_parting(error) or hydra.mode != RunMode.MULTIRUN:
            leave(1)
        return 1


def joined(config: DictConfig) -> bool:
    """Makes the process one of several, if it is to be; whether it is the one that writes."""
    coordinator = OmegaConf.select(config, "device.coordinator")
    if coordinator is None:
        return True
    if jax.distributed.is_initialized():  # by an earlier job of a multirun
        return is_first()
    join(coordinator, config.device.processes, config.device.process)
    placement_of(config)  # says how many devices there are before JAX is asked which process this is
    return is_first()


def tell(
    error: Exception, config: DictConfig, files: RunDirectory | None, overrides: list[str], tracebacks: bool
) -> None:
    """Says why a job has failed, also in its summary if it has files."""
    expected = isinstance(error, (ValueError, OSError))
    reason = str(error) if expected else f"{type(error).__name__}: {error} (verbose=true shows where)"
    reason = explain_memory(error) or explain_parting(error) or explain(error) or reason
    if isinstance(error, OSError):
        reason = explain_disk(error, files.path if files else ".")
    if tracebacks or config.verbose:
        traceback.print_exception(error)
    make_console(stderr=True).print(f"error: {reason}", style="red", soft_wrap=True, markup=False)
    if files and not (config.resume or isinstance(error, RunExists)):  # whose summary is still that of where it was
        with suppress(OSError):  # such as a full disk, of which the error has told
            files.write_summary({"status": "failed", "reason": reason, "overrides": overrides})


class Job:
    """A run under way."""

    def __init__(
        self,
        config: DictConfig,
        files: RunDirectory,
        console: Console,
        began: float,
        imported: float,
        trial: Trial | None = None,
    ):
        self.config = config
        self.files = files
        self.console = console
        self.began = began
        self.imported = imported
        self.trial = trial
        self.hydra = HydraConfig.get()
        self.splits: Splits

    def run(self) -> int:
        with scope(self.config.precision):
            train, options = self.prepare()
            self.announce()
            say = functools.partial(self.console.print, soft_wrap=True)
            context = nullcontext(self.trial.interruption) if self.trial else Interruption(say)
            with Display(self.console) as display, context as interruption:
                watcher = Watcher(self.config, self.files, self.console, display, interruption, self.trial)
                fit: Fit = train(self.splits.train, validation=self.splits.validation, **options, observer=watcher)
            if watcher.pruned:  # to the loop, a run that its observer ended
                fit = replace(fit, status="pruned")
            self.finish(fit)
            return EXIT.get(fit.status, interruption.exit_code)

    def assist(self) -> int:
        """Takes part in the run of another process, which shows and keeps what comes out."""
        self.console.quiet = True
        self.config.resume = None  # Where the other one goes on from, this one is told.
        with scope(self.config.precision), Interruption(lambda _: None) as interruption:
            train, options = self.prepare()
            fit: Fit = train(
                self.splits.train, validation=self.splits.validation, **options, observer=Heed(interruption)
            )
            return EXIT.get(fit.status, interruption.exit_code)

    def prepare(self) -> tuple[Callable[..., Fit], dict[str, Any]]:
        """Reads the data, writes down how the run begins, and gives what is called for it, with its arguments."""
        check_top(self.config)
        if self.config.resume == "auto":
            self.resolve_auto()
        if not self.config.resume:
            self.files.check_unused()
        keep_programs(self.config.compile_cache)
        placement_of(self.config)
        parts, train = build_parts(self.config)
        data, solver = parts.pop("data"), parts["solver"]
        loaded = data.load()
        # What is scored; the training data are cut for that in the end, since the fit has windows of its own.
        self.splits = loaded.windows(self.config.evaluation.window)._replace(train=loaded.train)
        if self.config.resume:
            self.files.check_data(self.splits.named())
        else:
            OmegaConf.save(self.config, self.files.config, resolve=True)
            self.files.write_record(command_record(self.hydra), self.splits.named())
        return train, {
            **parts,
            "hidden": hidden_states(self.config),
            "evaluation": self.evaluation(solver),
            "log": data.log,
            "bounds": data.bounds,
            "precision": self.config.precision,
            "device": self.config.device.kind,
            "devices": self.config.device.count,
            "seed": self.config.seed,
        }

    def resolve_auto(self) -> None:
        """`resume=auto`: goes on with the run that the directory holds, or begins one."""
        self.config.resume = str(self.files.path) if self.files.holds_run() else None
        if self.config.resume:
            check_same(OmegaConf.load(self.files.config), self.config, self.files.path)

    def evaluation(self, solver: Solver) -> Solver:
        tight = TIGHT[self.config.precision]
        chosen = build(self.config.evaluation, "evaluation")
        rtol = chosen["rtol"] or tight
        return replace(with_tolerance(solver, rtol), atol=chosen["atol"] or rtol / 100)

    def announce(self) -> None:
        if self.number is not None:
            words = self.hydra.overrides.task
            swept = [word for word in words if word not in sys.argv and not word.startswith("resume=")]
            self.console.rule(Text(f"job {self.number}: {' '.join(swept)}"), align="left")
        self.announce_data("node_fit: ")

    def announce_data(self, title: str) -> None:
        splits = self.splits
        devices = placement_of(self.config).devices
        used = devices[0].platform if len(devices) == 1 else f"{len(devices)} devices ({devices[0].platform})"
        sizes = ", ".join(f"{name} {counted(int(part.scored.sum()), 'row')}" for name, part in splits.named().items())
        self.console.print(
            f"{title}{counted(len(splits.train.states), 'state')}, "
            f"{counted(len(splits.train.inputs), 'input')}; {sizes}; "
            f"{self.config.precision} on {used}",
            soft_wrap=True,
        )

    @property
    def number(self) -> int | None:
        """The number of this job in a multirun; None outside of one."""
        return self.hydra.job.num if self.hydra.mode == RunMode.MULTIRUN else None

    def finish(self, fit: Fit) -> None:
        """Writes, draws and says what has come out."""
        named = self.splits.windows(self.config.evaluation.window).named()
        fit.save(self.files.model)
        simulated = simulate_splits(fit.model, named, self.config.evaluation.level)
        self.files.write_predictions(named, simulated.at_rows, simulated.bands)
        diagnosis = diagnose(fit.status, fit.history, named, simulated.at_rows)
        self.draw(fit, simulated)
        summary = summarise(fit, named, simulated, diagnosis, placement_of(self.config))
        total = round(time.perf_counter() - self.began, 3)
        summary["seconds"] = {"import": round(self.imported, 3), **summary["seconds"], "total": total}
        self.files.write_summary(summary | {"overrides": list(self.hydra.overrides.task)})
        print_scores(self.console, summary)
        print_bands(self.console, summary["ensemble"])
        print_constants(self.console, summary["constants"])
        self.console.print(f"start: {summary['start']}", soft_wrap=True, markup=False)
        self.console.print(f"{fit.status}: {fit.reason}", soft_wrap=True, markup=False)
        self.console.print(diagnosis.sentence, soft_wrap=True, markup=False)
        self.console.print(f"run: {self.files.path}", soft_wrap=True, markup=False)

    def draw(self, fit: Fit, simulated: Simulated) -> None:
        """The pictures; those of a sweep in processes beside, unless its jobs have processes of their own."""
        with forgiven(self.files.plots):
            curves = Curves(simulated.pictured, simulated.dense, simulated.dense_bands, simulated.left_out)
            typical, slopes = fit.model.typical, None
            if len(typical.states) == 2 and typical.is_measured:
                slopes = np.asarray(fit.model.derivative(phase_points(curves)))
            pictures = Pictures(self.files.plots, self.files.read_metrics(), curves, slopes)
            if self.number is not None and runs_here(self.hydra):
                DRAWING.draw(pictures)
            else:
                pictures.draw()
