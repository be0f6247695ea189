"""A run of `data=petab` or `data=sbml`: reads a problem, fits it from several starts, and writes its directory."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..evaluation.metrics import jsonable, score_predictions
from ..evaluation.simulation import predictions_frame
from ..likelihood.losses import AbstractLikelihood, Squares
from ..petab.fitting import Drawn, FitFromStart, PEtabFit, fit_petab, interval_in_words, sort_into_records
from ..petab.objective import Objective
from ..petab.sources import list_places, with_loss
from ..petab.tables import PEtabError, Problem
from ..plots.curves import TRAIN
from ..plots.figures import check_known_names, plot_fit, plot_starts
from ..report.pages import make_run_page
from ..runtime.serialization import Json
from ..storage.files import write_file
from ..storage.model_file import save
from ..uncertainty.confidence import ConfidenceInterval
from ..uncertainty.likelihood import information_criteria
from .background import warn_on_error
from .config.build import build, check_top, trajectories_to_plot
from .config.composition import ConfigError
from .console import NOT_ASKED
from .run_directory import OtherData, RunDirectory, check_same_config, check_unchanged, with_new_keys, write_config
from .run_logger import Interruption

DEFAULT_PETAB_STARTS = 10
# Folder of the experiments' models, maximum number of models, and characters removed from their file names.
MODELS, MAX_MODELS, NOT_IN_FILE_NAMES = "models", 50, r"[^A-Za-z0-9.+-]+"
# Default field of a config, and the field for networks in equations.
PLAIN_FIELD, HYBRID_FIELD = "node_fit.MLP", "node_fit.Hybrid"
# Config keys that only apply to other fits.
OTHER_OPTIONS = (
    "derived",
    "discover",
    "effort",
    "ensemble",
    "evaluation",
    "hidden",
    "logger",
    "observation",
    "optimizer",
    "penalty",
    "population",
    "prediction_solver",
    "random",
    "recipe",
    "solver",
    "start",
    "training",
)


def is_option_of_other_fits(override: str) -> bool:
    return re.split(r"[.=]", override.lstrip("+~"), maxsplit=1)[0] in OTHER_OPTIONS


@dataclass
class PEtabRun:
    """A run of a problem.

    **Arguments:**

    - `began`: start time, in seconds of `time.perf_counter`.
    - `record`: the command that started it.
    - `fits`: the completed fits, saved to the directory one by one, so that the run can resume.
    """

    config: DictConfig
    files: RunDirectory
    console: Console
    began: float
    record: Json
    fits: list[FitFromStart] = field(default_factory=list[FitFromStart])

    def run(self) -> int:
        """Fits the problem, prints the estimates with intervals, and writes the directory.

        **Returns:** the exit code.
        """
        self.prepare()
        problem = self.read_problem()
        self.check_networks(problem)
        self.check_plotted(problem)
        objective = Objective(problem)
        if self.config.resume:
            self.fits = read_starts(self.files.starts, objective)
        else:
            self.files.write_record(self.record, {})
            write_file(self.files.config, write_config(self.config).encode())
        self.say(f"run: {self.files.path}")
        self.say(repr(problem))
        if not isinstance(self.loss, Squares):
            self.say(f"loss: {self.loss!r} for all measurements, in place of the noise that the problem names")
        with Interruption(self.say) as interruption:
            fit = fit_petab(
                objective,
                restarts=self.restarts,
                seed=self.config.seed,
                known=tuple(self.fits),
                on_fit=partial(self.keep, interruption),
                on_failure=self.report_failure,
            )
        is_interrupted = interruption.number is not None
        end = "converged" if fit.attempts[0].has_converged else "stopped"
        self.finish(fit, "interrupted" if is_interrupted else end)
        return interruption.exit_code if is_interrupted else 0

    def prepare(self) -> None:
        """Checks the config, and that the directory is new or holds this run."""
        config, files = self.config, self.files
        if config.resume == "auto":
            config.resume = str(files.path) if files.holds_run() else None
            if config.resume:
                check_same_config(OmegaConf.load(files.config), config, files.path)
        elif config.resume:
            check_unchanged(OmegaConf.load(files.config), config)
            self.config = with_new_keys(config)
        check_top(self.config)
        self.check_field()
        self.check_options()
        if not self.config.resume:
            files.check_unused()

    def read_problem(self) -> Problem:
        """Reads the problem, with the noise of its tables unless `loss` differs from its default."""
        problem = build(self.config.data, "data").read()
        return problem if isinstance(self.loss, Squares) else with_loss(problem, self.loss)

    @cached_property
    def loss(self) -> AbstractLikelihood:
        return build(self.config.loss, "loss")

    def check_field(self) -> None:
        """Rejects fields other than the problem's equations, with or without a network in them."""
        if self.config.field.get("_target_") not in (PLAIN_FIELD, HYBRID_FIELD):
            raise ConfigError(
                "field: the model of a PEtab problem or SBML file has its equations; leave it out, or put a network in "
                "them with field=hybrid '+data.networks.NAME=[A,B]', where NAME is a reaction, a constant or a state."
            )
        key = next(
            (override for override in self.record["overrides"] if override.lstrip("+~").startswith("field.")), None
        )
        if key is not None:
            raise ConfigError(
                f"{key}: the problem has its equations, and a network in them its inputs by data.networks and its size "
                "by data.width; leave it out."
            )

    def check_options(self) -> None:
        """Rejects options of other fits, which would have no effect."""
        key = next((override for override in self.record["overrides"] if is_option_of_other_fits(override)), None)
        if key is not None:
            raise ConfigError(
                f"{key}: a PEtab problem or SBML file has a model, starts and bounds of its own, and least squares are "
                "searched from several starts; leave it out. Options are restarts, loss, confidence and seed."
            )

    def check_networks(self, problem: Problem) -> None:
        """Requires the role of the network of `field=hybrid`."""
        if self.config.field.get("_target_") == HYBRID_FIELD and not self.config.data.get("networks"):
            raise ConfigError(
                "field=hybrid: name what the network stands for and what it sees, as in '+data.networks.NAME=[A,B]'. "
                f"In {problem.name} it may be {list_places(problem)}."
            )

    def check_plotted(self, problem: Problem) -> None:
        """Rejects names of records to plot that the problem lacks."""
        records = [record.name for record in sort_into_records(problem.measurements)]
        check_known_names(trajectories_to_plot(self.config) or (), records)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    @property
    def restarts(self) -> int:
        return DEFAULT_PETAB_STARTS if self.config.restarts == "auto" else int(self.config.restarts)

    def keep(self, interruption: Interruption, fit: FitFromStart) -> bool:
        """Saves and reports the fit from a start; returns whether a signal ends the run."""
        self.fits.append(fit)
        write_starts(self.files.starts, self.fits)
        end = "" if fit.has_converged else ", not converged"
        seconds = time.perf_counter() - self.began
        self.say(
            f"{self.origin(fit.number)}: log-likelihood {fit.log_likelihood:.4f} after {fit.evaluations} "
            f"evaluations{end} ({seconds:.0f} s)"
        )
        return interruption.number is not None

    def report_failure(self, number: int) -> None:
        self.say(f"{self.origin(number)}: nothing can be simulated there, so it does not count")

    def origin(self, number: int) -> str:
        return "the stored parameters" if number == 0 else f"start {number} of {self.restarts}"

    def finish(self, fit: PEtabFit, status: str) -> None:
        """Writes, draws and prints the results."""
        files = self.files
        # Profiles take as long as many fits.
        method = "fisher" if (status, self.config.confidence) == ("interrupted", "profile") else self.config.confidence
        intervals = {"profile": fit.profiles, "fisher": fit.intervals, "none": dict[str, ConfidenceInterval]}[method]()
        fit.write(files.path)
        drawn = fit.draw()
        if drawn is not None:
            files.write_predictions(predictions_frame(drawn.data, drawn.predicted, split=TRAIN))
        models = self.write_models(fit)
        files.write_summary(
            {
                **summarise_petab(fit, intervals, method, drawn),
                "models": models,
                "status": status,
                "overrides": self.record["overrides"],
                "seconds": {"total": round(time.perf_counter() - self.began, 3)},
            }
        )
        self.draw(fit, drawn)
        for name, value in fit.parameters.items():
            ends = f"  ({interval_in_words(intervals[name])})" if name in intervals else ""
            self.say(f"{name:>28} = {value:.6g}{ends}")
        self.say(fit.sentence)
        if status == "interrupted":
            self.say(f"interrupted; resume={files.path} goes on with the other starts")
        self.say("parameters.tsv and simulations.tsv are PEtab tables")
        self.say_models(models)
        self.say(f"run: {files.path}")

    def write_models(self, fit: PEtabFit) -> Json:
        """Writes each experiment's model to a file; returns the file or the reason for its absence, by experiment."""
        names = list(fit.objective.problem.experiments)[:MAX_MODELS]
        written: Json = {}
        with warn_on_error(f"the models in {self.files.path / MODELS} were", self.files.path):
            (self.files.path / MODELS).mkdir(exist_ok=True)
            for number, (name, model) in enumerate(fit.to_models(names).items()):
                if isinstance(model, PEtabError):
                    written[name] = {"left_out": str(model)}
                    continue
                file = f"{re.sub(NOT_IN_FILE_NAMES, '_', name) or number}.safetensors"
                taken = {entry.get("file") for entry in written.values()}
                file = f"{MODELS}/{f'{number}_{file}' if f'{MODELS}/{file}' in taken else file}"
                save(model, self.files.path / file)
                written[name] = {"file": file}
        return written

    def say_models(self, models: Json) -> None:
        """Prints the model files, and the reason if an experiment has none."""
        files = [model["file"] for model in models.values() if "file" in model]
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            self.say(
                f"models: {self.files.path / files[0]}{more}; node_fit.load(FILE) predicts, and python -m "
                "node_fit.export FILE exports"
            )
        left_out = [model["left_out"] for model in models.values() if "left_out" in model]
        if left_out:
            self.say(f"{left_out[0]}{f' ({len(left_out)} experiments)' if len(left_out) > 1 else ''}")

    def draw(self, fit: PEtabFit, drawn: Drawn | None) -> None:
        """Draws the fit, the log-likelihoods of all starts, and the page."""
        files = self.files
        with warn_on_error(f"the plots in {files.plots} were", files.plots):
            files.plots.mkdir(exist_ok=True)
            if drawn is not None:
                plot_fit(drawn.curves, files.plots / "fit.png", trajectories_to_plot(self.config))
            if len(fit.attempts) > 1:
                losses = [-attempt.log_likelihood for attempt in fit.attempts]
                plot_starts(losses, files.plots / "starts.png", is_likelihood=True)
        if self.config.report:
            with warn_on_error(f"{files.path / 'report.html'} was", files.path):
                make_run_page(files.path, None if drawn is None else drawn.curves)


def summarise_petab(
    fit: PEtabFit, intervals: Mapping[str, ConfidenceInterval], method: str, drawn: Drawn | None
) -> Json:
    """Returns the content of `summary.json`, with the same keys as other runs."""
    problem, best = fit.objective.problem, fit.attempts[0]
    count, data = len(fit.objective.names), len(problem.measurements)
    failure = f" At {len(fit.failed)} more starts nothing could be simulated." if fit.failed else ""
    reason = "its last steps gain nothing" if best.has_converged else f"{best.evaluations} evaluations were not enough"
    confidence = {
        "method": method,
        "level": 0.95,
        "constants": {name: item.as_dict() for name, item in intervals.items()},
    }
    return {
        "reason": reason,
        "problem": problem.name,
        "log_likelihood": fit.log_likelihood,
        "chi2": jsonable(fit.objective.chi2(fit.x)),
        "measurements": data,
        "parameters": count,
        "constants": fit.parameters,
        "confidence": confidence if intervals else {"left_out": NOT_ASKED},
        "likelihood": {
            "nll": -fit.log_likelihood,
            "noise": "the problem's",
            **information_criteria(-fit.log_likelihood, count, data),
        },
        "metrics": {} if drawn is None else {TRAIN: score_predictions(drawn.data, drawn.predicted).as_dict()},
        "diagnosis": {"kind": "converged" if best.has_converged else "unfinished", "sentence": fit.sentence},
        "starts": {
            "sentence": f"{fit.near} of {len(fit.attempts)} fits came to the best log-likelihood, within 0.1.{failure}",
            "table": [
                {
                    "start": item.number,
                    "status": "converged" if item.has_converged else "stopped",
                    "loss": -item.log_likelihood,
                    "constants": {name: values[name] for name in fit.objective.names},
                }
                for item in fit.attempts
                for values in [fit.objective.values(item.x)]
            ],
        },
    }


def write_starts(path: Path, fits: list[FitFromStart]) -> None:
    rows = [fit._asdict() | {"start": fit.start.tolist(), "x": fit.x.tolist()} for fit in fits]
    write_file(path, (json.dumps(rows, indent=1) + "\n").encode())


def read_starts(path: Path, objective: Objective) -> list[FitFromStart]:
    """Reads the saved fits of a run.

    **Raises:** `OtherData` if the problem gives a different log-likelihood at the first fit.
    """
    rows: list[Json] = json.loads(path.read_text()) if path.is_file() else []
    fits = [FitFromStart(**row)._replace(start=np.array(row["start"]), x=np.array(row["x"])) for row in rows]
    for fit in fits[:1]:
        now = objective.log_likelihood(fit.x) if len(fit.x) == len(objective.names) else -math.inf
        if not math.isclose(now, fit.log_likelihood, rel_tol=1e-6):
            raise OtherData(
                f"the problem is not the one that {path.parent} began with: at the end of its first fit the "
                f"log-likelihood was {fit.log_likelihood:.6g}, and is now {now:.6g}; restore the files, or start a "
                "new run."
            )
    return fits
