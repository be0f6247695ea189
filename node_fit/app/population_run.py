"""A run with random effects: fits a population, prints the estimates, and writes its directory."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..data.dataset import Dataset, Splits
from ..evaluation.metrics import jsonable, score_predictions
from ..evaluation.simulation import predictions_frame
from ..fitting.progress import Display
from ..options.options import Options
from ..plots.curves import TRAIN, Curves
from ..plots.figures import check_known_names, plot_fit, plot_starts
from ..plots.population import PredictiveBands, plot_observed, plot_predictive_check
from ..population.effects import RandomEffects
from ..population.fit import INTERVAL_LEVEL, MixedEffects, PopulationFit, fit_population
from ..population.likelihood import Watch, watch_nothing
from ..population.prediction import draw_curves
from ..population.search import Optimum
from ..population.storage import write_population
from ..population.subjects import subject_of
from ..report.pages import make_run_page
from ..runtime.compilation import keep_programs
from ..runtime.serialization import Json
from ..storage.files import write_file
from ..uncertainty.likelihood import information_criteria
from .background import FIT_PICTURE, warn_on_error
from .config.build import build, build_parts, check_top, errors_of_data, trajectories_to_plot
from .config.composition import ConfigError
from .console import pluralize
from .first_answer import FirstAnswerThread
from .run_directory import RunDirectory, write_config
from .run_logger import Interruption

# Number of initial guesses for a typical subject's constants; the first answer is fitted from the best.
ANSWER_DRAWS = 64


class PopulationTask(NamedTuple):
    """A config's population fit: the data, without held-out rows, and the settings."""

    splits: Splits
    notes: Sequence[str]
    random: RandomEffects
    settings: MixedEffects
    options: Options

    @staticmethod
    def of(config: DictConfig) -> "PopulationTask":
        parts = build_parts(replace_precision(config))
        settings = settings_of(config)
        with errors_of_data():
            splits, notes = replace(parts.data, split=parts.data.split.with_shares(0.0)).load_with_notes()
        random = cast(RandomEffects, OmegaConf.to_container(config.random))
        return PopulationTask(splits, notes, random, settings, parts.options)

    def fit(
        self,
        tell: Callable[[int, Optimum | ValueError], None] = lambda number, end: None,
        watch: Watch = watch_nothing,
    ) -> PopulationFit:
        """Fits the population; arguments as in `fit_population`."""
        _, _, random, settings, options = self
        data = self.splits.train
        return fit_population(data, random=random, population=settings, options=options, tell=tell, watch=watch)


@dataclass
class PopulationRun:
    """A run of a population.

    **Arguments:** `began`: start time, in seconds of `time.perf_counter`. `record`: the command that started it.
    """

    config: DictConfig
    files: RunDirectory
    console: Console
    began: float
    record: Json

    def run(self) -> int:
        """Fits the population, prints the estimates, and writes the directory.

        **Returns:** the exit code.
        """
        config, files = self.config, self.files
        if config.resume:
            raise ConfigError("resume continues a training, and a population is fitted at once; leave resume out.")
        check_top(config)
        files.check_unused()
        keep_programs(config.compile_cache)
        task = PopulationTask.of(config)
        train = task.splits.train
        with errors_of_data():
            check_known_names(trajectories_to_plot(config) or (), train.trajectories)
        files.write_record(self.record, task.splits.named())
        write_file(files.config, write_config(config).encode())
        self.say(f"run: {files.path}")
        self.say(f"node_fit: {extent_of(train, task.settings)}, {int(np.isfinite(train.ys).sum())} measurements; x64")
        for note in task.notes:
            self.say(note)
        with Display(self.console) as display, Interruption(self.say, self.leave):
            answering = FirstAnswerThread(
                {TRAIN: train},
                files.plots / FIT_PICTURE,
                self.say,
                train.trajectories[:1],
                task.options.field,
                ANSWER_DRAWS,
                train.input_interpolation[0] if train.is_driven else "linear",
            )
            answering.begin()
            display.say("preparing the population")
            fit = task.fit(
                tell=functools.partial(self.tell_start, task.options.restarts), watch=Evaluations(display.say)
            )
            display.say("describing the population")
            answering.end()
            self.finish(fit)
        return 0

    def leave(self) -> None:
        """Reports that no fit is saved when Ctrl-C ends the process."""
        self.say(f"stopped by SIGINT; {self.files.path} holds no fit of the population, which is made at once")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def tell_start(self, restarts: object, number: int, end: Optimum | ValueError) -> None:
        if isinstance(restarts, int) and restarts > 1:
            result = end if isinstance(end, ValueError) else f"objective {end.value:.3f}"
            self.say(f"start {number + 1} of {restarts}: {result}")

    def finish(self, fit: PopulationFit) -> None:
        """Writes, draws and prints the results."""
        files = self.files
        write_population(fit.known, files.path)
        fit.individuals.to_csv(files.path / "individuals.csv", index=False)
        fit.predictions.to_csv(files.path / "subjects.csv", index=False)
        individual = fit.at_rows
        files.write_predictions(predictions_frame(fit.data, individual, split=TRAIN))
        sentences = describe_effects(fit)
        summary = summarise_population(fit, individual, sentences)
        summary["overrides"] = self.record["overrides"]
        summary["seconds"] = {"fit": round(fit.seconds, 3), "total": round(time.perf_counter() - self.began, 3)}
        files.write_summary(summary)
        for line in (*fit.lines, *sentences):
            self.say(line)
        self.draw(fit)
        self.say("individuals.csv holds the constants of each subject, subjects.csv the prediction of each measurement")
        self.say(f"run: {files.path}")

    def draw(self, fit: PopulationFit) -> None:
        """Draws the subjects, observed against predicted values, the predictive check, and the page."""
        files, data = self.files, fit.data
        with warn_on_error(f"the plots in {files.plots} were", files.plots):
            files.plots.mkdir(exist_ok=True)
            simulated = draw_curves(fit.optimum, data)
            curves = Curves({TRAIN: data}, {TRAIN: (simulated.ts, simulated.individual)}, at_rows={TRAIN: fit.at_rows})
            plot_fit(curves, files.plots / FIT_PICTURE, trajectories_to_plot(self.config))
            draw_checks(fit, files)
            if len(fit.objectives) > 1:
                plot_starts(
                    [objective / 2 for objective in fit.objectives], files.plots / "starts.png", is_likelihood=True
                )
        if self.config.report:
            with warn_on_error(f"{files.path / 'report.html'} was", files.path):
                make_run_page(files.path, curves)
                self.say(f"report: {files.path.absolute() / 'report.html'}")


class Evaluations:
    """Reports the progress of a search at each evaluation of the objective."""

    def __init__(self, say: Callable[[str], None]):
        self.say, self.count = say, 0

    def __call__(self, method: str, value: float) -> None:
        self.count += 1
        how = "without effects" if method == "pooled" else f"by {method}"
        progress = f": objective {value:.2f} after {pluralize(self.count, 'evaluation')}" if np.isfinite(value) else ""
        self.say(f"fitting the population {how}{progress}")


def settings_of(config: DictConfig) -> MixedEffects:
    """Builds the settings; with an occasion column, a subject's records share its effects."""
    settings: MixedEffects = build(config.population, "population")
    has_occasions = OmegaConf.select(config, "data.occasion") is not None
    return replace(settings, occasions=[]) if has_occasions and settings.occasions is None else settings


def extent_of(train: Dataset, settings: MixedEffects) -> str:
    """Formats the number of subjects, and of records if subjects have several."""
    records = len(train.trajectories)
    if settings.occasions is None:
        return f"{records} subjects"
    return f"{len({subject_of(name) for name in train.trajectories})} subjects, {records} records"


def replace_precision(config: DictConfig) -> DictConfig:
    """Copies the config in double precision, which exact second derivatives need."""
    config = cast(DictConfig, OmegaConf.create(OmegaConf.to_container(config)))
    config.precision = "x64"
    return config


def draw_checks(fit: PopulationFit, files: RunDirectory) -> None:
    """Draws observed against predicted values and a predictive check of each channel."""
    rows, units = fit.predictions, fit.data.units
    for channel in fit.data.states:
        channel_rows = rows[rows["channel"] == channel]
        if channel_rows.empty:
            continue
        suffix = "" if len(fit.data.states) == 1 else f"_{channel}"
        label = with_unit(channel, fit.data)
        values, typical, individual = (
            channel_rows[name].to_numpy() for name in ("observed", "population", "individual")
        )
        exact = (
            channel_rows["observed"].where(channel_rows["limit"] == "").to_numpy()
            if "limit" in channel_rows
            else values
        )
        plot_observed(exact, typical, individual, files.plots / f"observed{suffix}.png", label=label)
        if "other_end" in channel_rows:
            values = (
                channel_rows["other_end"]
                .add(channel_rows["observed"])
                .div(2)
                .fillna(channel_rows["observed"])
                .to_numpy()
            )
        check = fit.check_by_simulation(channel)
        bands = PredictiveBands(check.times, check.observed, check.lower, check.middle, check.upper)
        time_label = f"{fit.data.time} [{units[fit.data.time]}]" if fit.data.time in units else fit.data.time
        times = channel_rows[fit.data.time].to_numpy()
        if fit.structure.has_occasions:
            first = dict(zip(fit.data.trajectories, fit.data.ts[:, 0].tolist(), strict=True))
            times = times - channel_rows["trajectory"].map(first).to_numpy(float)
            time_label += ", from the begin of each occasion"
        plot_predictive_check(
            bands,
            times,
            values,
            files.plots / f"predictive_check{suffix}.png",
            labels=[time_label, label],
        )


def with_unit(name: str, data: Dataset) -> str:
    return f"{name} [{data.units[name]}]" if name in data.units else name


def describe_effects(fit: PopulationFit) -> list[str]:
    """Describes effects that the data do not determine, with a test each, and undetermined estimates."""
    sentences: list[str] = []
    if fit.evaluated:
        return ["the parameters are those given; only the objective was computed"]
    for name in fit.unidentified_effects:
        test = fit.compare_without(name)
        sentences.append(
            f"the data hardly determine how {name} differs between subjects (variance {fit.variances[name].value:.2g}, "
            f"shrinkage {100 * fit.shrinkage[name]:.0f}%): {test}; leave it out of random if it is not needed"
        )
    sentences += [
        f"the data do not determine whether {name} differs between occasions (variance "
        f"{fit.occasion_variances[name].value:.2g}); leave it out of population.occasions"
        for name in fit.unidentified_occasions
    ]
    sentences += [
        f"{name} lies at the end of its bounds, {end:g}: the data favour a value beyond it, or do not determine it; "
        "change the bounds, or hold it there with three equal numbers"
        for name, end in fit.at_ends.items()
    ]
    if not np.isfinite(fit.condition_number):
        sentences.append(
            "the objective has no minimum in some direction, so that there are no standard errors; use fewer effects, "
            "simpler noise, or restarts=10"
        )
    elif fit.condition_number > 1000:
        sentences.append(
            f"the condition number is {fit.condition_number:.3g}: the data hardly distinguish some parameters; "
            "use fewer"
        )
    return sentences


def summarise_population(fit: PopulationFit, individual: np.ndarray, sentences: list[str]) -> Json:
    """Returns the content of `summary.json`, with the same keys as other runs."""
    parameters = len(fit.optimum.x)
    values = int(np.sum(fit.problem.subjects.seen.mask))
    sentence = f"objective {fit.objective:.3f} by {fit.method}, {values} measurements of {len(fit.eta)} subjects"
    intervals = {
        name: {
            "estimate": estimate.value,
            "standard_error": jsonable(estimate.error),
            "lower": jsonable(estimate.lower),
            "upper": jsonable(estimate.upper),
        }
        for name, estimate in fit.fixed.items()
    }
    return {
        "status": fit.status,
        "reason": {
            "converged": "another Newton step would gain nothing",
            "stopped": "the search ended before its gradient was small",
            "evaluated": "population.evaluate=true keeps the parameters",
        }[fit.status],
        "population": fit.population,
        "constants": fit.constants,
        "confidence": {"method": "fisher", "level": INTERVAL_LEVEL, "constants": intervals},
        "likelihood": {
            "nll": -fit.log_likelihood,
            "noise": "the population's",
            **information_criteria(-fit.log_likelihood, parameters, values),
        },
        "parameters": parameters,
        "metrics": {TRAIN: score_predictions(fit.data, individual).as_dict()},
        "diagnosis": {
            "kind": "unfinished" if fit.status == "stopped" else "converged",
            "sentence": ". ".join([sentence, *sentences]),
        },
    }
