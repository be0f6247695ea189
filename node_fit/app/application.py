"""Runs one job: from a composed config to a run directory."""

import functools
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

import jax
import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from ..data.dataset import Dataset, Splits
from ..evaluation.diagnosis import Assessment
from ..fitting.fit import fit
from ..fitting.progress import Display
from ..fitting.result import Fit
from ..options.options import Devices, Options
from ..plots.curves import Curves
from ..plots.figures import check_known_names, phase_points
from ..report.run_files import Summary
from ..runtime.compilation import keep_programs
from ..runtime.placement import (
    Placement,
    exit_distributed,
    explain_lost_process,
    explain_memory,
    is_first,
    join_processes_of,
    scope,
)
from ..startup import BEGAN, RUN, lacking_room
from ..storage.files import explain_disk, write_file
from ..training.callback import ENDED, Callback
from .background import DRAWING, FIT_PICTURE, MovingPicture, Page, Pictures, Rehearsal, warn_on_error
from .config.build import (
    build_parts,
    check_top,
    errors_of_data,
    errors_of_training,
    is_petab,
    is_population,
    placement_of,
    trajectories_to_plot,
)
from .config.composition import explain
from .console import attempt_lines, describe_end, make_console, pluralize, print_results, summarise
from .first_answer import FirstAnswerThread, find_telling_role, has_first_answer
from .leaderboard import runs_here
from .run_directory import (
    RunDirectory,
    RunExists,
    check_same_config,
    check_unchanged,
    command_record,
    overrides_of,
    plain_runtime,
    with_new_keys,
    write_config,
)
from .run_logger import Interruption, Pruner, RunLogger, StopOnSignal, make_loggers

LINEAR_IS_BEST = (
    "the linear state-space model that the fit began with is returned: training found none that describes training and "
    "validation data better"
)
EXIT = {**dict.fromkeys(ENDED, 0), "pruned": 0, "failed": 1}


def run_command(config: DictConfig, imported: float, tracebacks: bool, trial: Pruner | None = None) -> int:
    """Runs a job and writes its directory.

    **Arguments:**

    - `config`: composed by Hydra.
    - `imported`: duration of the imports [s].
    - `tracebacks`: whether to print a traceback with an error.
    - `trial`: the job's trial in a search; `None` outside of a search.

    **Returns:** the exit code: 0, 1 if it failed, 130 or 143 if a signal ended it.
    """
    hydra = HydraConfig.get()
    files = RunDirectory(plain_runtime(hydra)["output_dir"])
    console = make_console()
    # The first job of a process includes the time of the imports.
    first = hydra.mode != RunMode.MULTIRUN or hydra.job.num == 0
    began = BEGAN if first else time.perf_counter()
    try:
        if first and (lack := lacking_room(RUN)):
            raise MemoryError(lack)
        first = True
        first = join_processes(config)
        if first:
            with files.hold_lock():
                if is_petab(config):
                    from .petab_run import PEtabRun  # Few runs need it, and all would wait for it.

                    return PEtabRun(config, files, console, began, command_record(hydra)).run()
                if is_population(config):
                    from .population_run import PopulationRun  # the same

                    return PopulationRun(config, files, console, began, command_record(hydra)).run()
                return Job(config, files, console, began, imported, trial).run()
        with TemporaryDirectory() as folder:
            return Job(config, RunDirectory(folder), console, began, imported).assist()
    except Exception as error:  # A failed job must not end the other jobs of a multirun.
        report_failure(error, config, files if first else None, list(hydra.overrides.task), tracebacks)
        if explain_lost_process(error) or hydra.mode != RunMode.MULTIRUN:
            exit_distributed(1)
        return 1


def join_processes(config: DictConfig) -> bool:
    """Joins a distributed run if the config requests one; returns whether this process writes files."""
    coordinator = OmegaConf.select(config, "device.coordinator")
    if coordinator is None:
        return True
    if jax.distributed.is_initialized():  # by an earlier job of a multirun
        return is_first()
    join_processes_of(coordinator, config.device.processes, config.device.process)
    placement_of(config)  # Sets the number of devices, which must precede the first query of JAX's process index.
    return is_first()


def report_failure(
    error: Exception, config: DictConfig, files: RunDirectory | None, overrides: list[str], tracebacks: bool
) -> None:
    """Prints why a job failed, and writes the reason to its summary."""
    expected = isinstance(error, (ValueError, OSError))
    reason = str(error) if expected else f"{type(error).__name__}: {error} (verbose=true shows the traceback)"
    if isinstance(error, jax.errors.JaxRuntimeError) and config.compile_cache is not False:
        reason += "; if it happens again, rule out a damaged compile cache with compile_cache=false"
    reason = explain_memory(error) or explain_lost_process(error) or explain(error) or reason
    if isinstance(error, OSError):
        reason = explain_disk(error, files.path if files else ".")
    if tracebacks or config.verbose:
        traceback.print_exception(error)
    make_console(stderr=True).print(f"error: {reason}", style="red", soft_wrap=True, markup=False)
    mine = files is not None and (files.ours or not (files.holds_run() or files.foreign()))
    if files and mine and not (config.resume or isinstance(error, RunExists)):  # An existing run keeps its summary.
        with suppress(OSError):  # For example a full disk, which the printed error already reports.
            files.write_summary({"status": "failed", "reason": reason, "overrides": overrides})


class Job:
    """One run in this process."""

    def __init__(
        self,
        config: DictConfig,
        files: RunDirectory,
        console: Console,
        began: float,
        imported: float,
        trial: Pruner | None = None,
    ):
        self.config, self.files, self.console = config, files, console
        self.began, self.imported, self.trial = began, imported, trial
        self.hydra = HydraConfig.get()
        self.splits: Splits
        self.place: Placement
        # The data by role: as read, and in windows if the config requests them.
        self.whole: dict[str, Dataset] = {}
        self.windows: dict[str, Dataset] = {}
        self.notes: list[str] = []
        self.answering: FirstAnswerThread | None = None
        self.moving: MovingPicture | None = None

    def run(self) -> int:
        with scope(self.config.precision):
            options = self.prepare()
            self.announce()
            self.answer_first(options)
            say = functools.partial(self.console.print, soft_wrap=True)
            context = nullcontext(self.trial.interruption) if self.trial else Interruption(say, self.leave)
            with Display(self.console) as display, context as interruption:
                logger = RunLogger(self.config, self.files, self.console, display, interruption, self.trial)
                fit = self.fit(options, logger, *make_loggers(self.config, self.files), *self.beside_training(options))
                if logger.pruned:  # The training loop only knows that a callback ended the run.
                    fit = replace(fit, status="pruned")
                self.finish(fit, display)
            self.say_where()
            return EXIT.get(fit.status, interruption.exit_code)

    def leave(self) -> None:
        """Reports the saved state when Ctrl-C ends the process before the fit ends."""
        is_saved = self.files.holds_run()
        advice = f"continue with resume={self.files.path}" if is_saved else "nothing was fitted yet"
        self.console.print(f"stopped by SIGINT; {advice}", soft_wrap=True, markup=False)

    def assist(self) -> int:
        """Computes a share of a distributed run whose first process prints and writes the results."""
        self.console.quiet = True
        self.config.resume = None  # The first process broadcasts the state to resume from.
        with scope(self.config.precision), Interruption(lambda _: None) as interruption:
            fit = self.fit(self.prepare(), StopOnSignal(interruption))
            return EXIT.get(fit.status, interruption.exit_code)

    def fit(self, options: Options, *callbacks: Callback) -> Fit:
        splits = self.splits
        with errors_of_training():
            return fit(splits.train, validation=splits.validation, callbacks=callbacks, progress=False, options=options)

    def prepare(self) -> Options:
        """Reads the data, records the config and the command, and returns the fit's options."""
        if self.config.resume == "auto":
            self.resolve_auto()
        elif self.config.resume:
            check_unchanged(OmegaConf.load(self.files.config), self.config)
            self.config = with_new_keys(self.config)
        check_top(self.config)
        if not self.config.resume:
            self.files.check_unused()
        keep_programs(self.config.compile_cache)
        placement_of(self.config)
        parts = build_parts(self.config)
        with errors_of_data():
            loaded, self.notes = parts.load_with_notes()
            for part in loaded.named().values():  # Including the test data, which the fit does not see.
                parts.options.scaling.check(part)
            names = [name for part in loaded.named().values() for name in part.trajectories]
            check_known_names(trajectories_to_plot(self.config) or (), names)
        longest = max(int(part.lengths.max()) for part in loaded.named().values())
        if (window := self.config.evaluation.window) and window > longest:
            self.notes.append(f"evaluation.window={window} is more than the {longest} rows of the longest trajectory")
        # Windows for the scores. The training data stay whole here, since the fit cuts its own windows; they are cut at
        # the end for scoring.
        self.splits = loaded.windows(self.config.evaluation.window)._replace(train=loaded.train)
        self.whole, self.windows = self.splits.named(), self.splits.windows(self.config.evaluation.window).named()
        if self.config.resume:
            self.files.check_data(self.splits.named())
        else:
            # Write the record first, since it marks the other files as part of a run.
            self.files.write_record(command_record(self.hydra), self.splits.named())
            write_file(self.files.config, write_config(self.config).encode())
        options = parts.options.for_data(loaded.train)
        assert isinstance(options.device, Devices)
        self.place = replace(placement_of(self.config), device=options.device.kind)
        return options

    def resolve_auto(self) -> None:
        """Resolves `resume=auto`: resumes the run in the directory, or starts a new one."""
        self.config.resume = str(self.files.path) if self.files.holds_run() else None
        if self.config.resume:
            check_same_config(OmegaConf.load(self.files.config), self.config, self.files.path)

    def announce(self) -> None:
        if self.number is not None:
            words = self.hydra.overrides.task
            swept = [word for word in words if word not in sys.argv and not word.startswith("resume=")]
            self.console.rule(Text(f"job {self.number}: {' '.join(swept)}"), align="left")
        else:
            self.say_where()
        self.announce_data("node_fit: ")

    def answer_first(self, options: Options) -> None:
        """Starts the first answer if this is a single run, for which a user is waiting."""
        alone = self.number is None and self.trial is None and not self.config.resume
        if alone and has_first_answer(self.windows, options.scaling.angles):
            say = functools.partial(self.console.print, soft_wrap=True, markup=False)
            picture = self.files.plots / FIT_PICTURE
            self.answering = FirstAnswerThread(
                *(self.windows, picture, say, self.preview_trajectories, options.field), inputs=options.solver.inputs
            )
            self.answering.begin()

    @property
    def preview_trajectories(self) -> Sequence[str]:
        """The trajectories in plots during the fit: one by default, since drawing more would slow the fit."""
        first = self.windows[find_telling_role(self.windows)].trajectories[:1]
        return trajectories_to_plot(self.config) or first

    def beside_training(self, options: Options) -> list[Callback]:
        """Returns the callbacks that work beside the training of a single fit."""
        if options.members.count > 1:
            return []
        if self.number is None and self.trial is None:
            self.moving = MovingPicture(self.prediction_data, self.files.plots / FIT_PICTURE, self.preview_trajectories)
        return [Rehearsal(self.prediction_data), *([] if self.moving is None else [self.moving])]

    def describe_change(self, summary: Summary) -> list[str]:
        """Compares the fit with the first answer, if one exists."""
        answer = None if self.answering is None else self.answering.answer
        change = None if answer is None else answer.describe_change(summary)
        return [] if change is None else [change]

    def say_where(self) -> None:
        """Prints the run's directory."""
        self.console.print(f"run: {self.files.path}", soft_wrap=True, markup=False)

    def announce_data(self, title: str) -> None:
        splits = self.splits
        devices = self.place.devices
        used = devices[0].platform if len(devices) == 1 else f"{len(devices)} devices ({devices[0].platform})"
        sizes = ", ".join(f"{name} {extent(part)}" for name, part in splits.named().items())
        self.console.print(
            f"{title}{pluralize(len(splits.train.states), 'state')}, "
            f"{pluralize(len(splits.train.inputs), 'input')}; {sizes}; "
            f"{self.config.precision} on {used}",
            soft_wrap=True,
        )
        for note in self.notes:
            self.console.print(note, soft_wrap=True)

    @property
    def number(self) -> int | None:
        """The number of this job in a multirun, or `None` outside of a multirun."""
        return self.hydra.job.num if self.hydra.mode == RunMode.MULTIRUN else None

    def prediction_data(self, horizon: int | None = None) -> dict[str, Dataset]:
        """Returns the data to predict, in windows if the config requests them or the model predicts no longer."""
        if horizon is None or self.config.evaluation.window:
            return self.windows
        return {name: part.windows(horizon, horizon) for name, part in self.windows.items()}

    def finish(self, fit: Fit, display: Display) -> None:
        """Writes, plots and prints the results: the model first, and then the status of an interrupted fit."""
        words = overrides_of(self.hydra, self.files.record, self.config.resume)
        fit.save(self.files.model)
        if fit.status == "interrupted":
            self.files.write_summary({"status": fit.status, "reason": fit.reason, "overrides": words})
        display.say("scoring the fit")
        chaos = fit.score_chaos(self.whole["train"], list(self.whole.values())[-1])
        names = trajectories_to_plot(self.config) or ()
        report = fit.assess(self.prediction_data(fit.horizon), self.config.evaluation.level, chaos, pictured=names)
        self.files.write_predictions(report.frame())
        display.say("drawing the fit")
        for earlier in (self.answering, self.moving):
            if earlier is not None:
                earlier.end()
        page = self.draw(fit, report)
        # Numbers of rows as announced at the start.
        row_counts = {name: int(part.scored.sum()) for name, part in self.whole.items()}
        summary = summarise(fit, report, row_counts, self.place, self.config.confidence)
        total = round(time.perf_counter() - self.began, 3)
        summary["seconds"] = {"import": round(self.imported, 3), **summary["seconds"], "total": total}
        summary["data"] = self.notes
        self.files.write_summary(summary | {"overrides": words})
        print_results(self.console, summary, fit.restarts)
        for line in (
            f"start: {summary['start']}",
            describe_end(fit.status, fit.reason, had_ended=bool(fit.steps and not fit.history)),
            *([LINEAR_IS_BEST] if summary["linear_is_best"] else []),
            *attempt_lines(fit.attempts, fit.choices, fit.horizon),
            *(f"{choice.value}: {choice.reason}" for choice in fit.choices if choice.key == "refit"),
            *self.describe_change(summary),
            report.verdict.sentence,
        ):
            self.console.print(line, soft_wrap=True, markup=False)
        if self.config.report and page is not None:
            display.say("writing the page")
            self.draw_page(page)

    def draw(self, fit: Fit, report: Assessment) -> Page | None:
        """Draws the plots; a multirun in this process draws them in background processes.

        **Returns:** the content of the run's page, or `None` if it failed.
        """
        page = None
        with warn_on_error(f"the plots in {self.files.plots} were", self.files.plots):
            assert report.simulated is not None
            curves = Curves.of(report.simulated, report.weighted_splits)
            typical, slopes = fit.model.typical, None
            if len(typical.states) == 2 and typical.is_measured:
                slopes = np.asarray(fit.model.derivative(phase_points(curves)))
            sweep = None if self.number is None else self.files.path.absolute().parent
            page = Page(self.files.path.absolute(), curves, slopes, sweep)
            losses = () if fit.restarts is None else fit.restarts.losses
            kept_attempt = next((attempt.name for attempt in fit.attempts if attempt.kept), None)
            names = trajectories_to_plot(self.config)
            self.beside(
                Pictures(self.files.plots, self.files.read_metrics(), curves, slopes, losses, kept_attempt, names)
            )
        return page

    def draw_page(self, page: Page) -> None:
        with warn_on_error(page.title, page.folder):
            self.beside(page)
            self.console.print(f"report: {page.path}", soft_wrap=True, markup=False)

    def beside(self, drawn: Pictures | Page) -> None:
        if self.number is not None and runs_here(self.hydra):
            DRAWING.draw(drawn)
        else:
            drawn.draw()


def extent(part: Dataset) -> str:
    """Formats the size of a split, such as `12 rows of 3 trajectories`."""
    rows, names = pluralize(int(part.scored.sum()), "row"), part.trajectories
    return rows if len(names) == 1 else f"{rows} of {pluralize(len(names), 'trajectory')}"
