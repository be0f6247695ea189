"""The first answer of a run: the fit of simple models or known equations to the data, before any compilation."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..data.dataset import Dataset
from ..data.inputs import Interpolations
from ..evaluation.baselines import baselines, predict_baselines
from ..evaluation.metrics import score_predictions
from ..fitting.uncompiled import FirstFit, fit_without_compiling
from ..plots.curves import TRAIN, Curves, Dense
from ..report.run_files import Summary
from ..storage.files import write_file
from .background import MAX_DRAWN_VALUES, png_of_fit
from .console import format_number

# Maximum wait for the answer [s]; a slower answer arrives while the fit runs.
MAX_ANSWER_WAIT = 1.0
MAX_CURVE_POINTS = 1_000
SIMPLE_MODELS = {"linear": "a linear model", "persistence": "the last known value", "mean": "the mean"}
# Relative difference below which errors count as equal.
EQUAL_ERROR = 0.01
# Roles of data, by preference for judging a model.
TELLING_ROLES = ("validation", "test", TRAIN)
LINEAR_CAPTION, EQUATIONS_CAPTION = (
    "a linear model, which the fit will replace",
    "first constants of the equations, which the fit will replace",
)


@dataclass(frozen=True)
class FirstAnswer:
    """The scores of simple models or known equations.

    - `role`: the data that they predict: held-out data if available.
    - `nrmse`: the finite NRMSEs, by the names of `predict_baselines`.
    - `equations`: the fit of the known equations. `error`: its NRMSE.
    """

    role: str
    nrmse: Mapping[str, float]
    equations: FirstFit | None = None
    error: float = math.nan

    @staticmethod
    def of(
        splits: Mapping[str, Dataset],
        field: object = None,
        draws: int = 0,
        inputs: Interpolations | Literal["auto"] = "auto",
    ) -> "FirstAnswer | None":
        """Computes the answer for data by role.

        Returns None if the data are constant, so that not even the mean has a score, or if states jump at events and no
        equations were fitted.

        **Arguments:** `field`, `draws`, `inputs`: as in `fit_without_compiling`.
        """
        role = find_telling_role(splits)
        scores = baselines(splits[TRAIN], splits[role])
        errors = {name: scores[name].nrmse for name in SIMPLE_MODELS if name in scores}
        finite = {name: nrmse for name, nrmse in errors.items() if math.isfinite(nrmse)}
        if "mean" not in finite:
            return None
        fit = fit_without_compiling(field, splits, TRAIN, draws=draws, inputs=inputs)
        error = math.nan if fit is None else score_predictions(splits[role], fit.at_rows(role)).nrmse
        if math.isfinite(error):
            return FirstAnswer(role, finite, fit, error)
        return None if has_events(splits) else FirstAnswer(role, finite)

    @property
    def best(self) -> str:
        """The name of the simple model with the least error."""
        return min(self.nrmse, key=lambda name: self.nrmse[name])

    def __str__(self) -> str:
        errors = [(SIMPLE_MODELS[name], error) for name, error in self.nrmse.items()]
        if self.equations is None:
            (name, error), *errors = errors
            subject, values = f"{name} has", ""
        else:
            subject, error, constants = "the equations have", self.error, self.equations.constants
            values = ", ".join(f"{name} = {value:.3g}" for name, value in constants.items())
        named = f" ({values})" if values else ""
        comparison = "".join(f", {name} {format_number(error)}" for name, error in errors)
        return f"first answer: {subject} an NRMSE of {format_number(error)} on {self.role} data{named}{comparison}"

    def describe_change(self, summary: Summary) -> str | None:
        """Compares the fit with the first answer by the run's scores on the same rows; None without scores."""
        fitted, simple = summary["metrics"].get(self.role), summary["baselines"].get(self.best, {}).get(self.role)
        if fitted is None or (new := fitted["nrmse"]) is None:
            return None
        points = sum(channel["points"] for channel in fitted.get("channels", {}).values())
        if self.equations is not None:
            change, there = compare_errors(new, self.error, points), f"it had {format_number(self.error)}"
        elif simple is None or (old := simple["nrmse"]) is None:
            return None
        else:
            change = compare_errors(new, old, points)
            there = f"{SIMPLE_MODELS[self.best]} has {format_number(old)} on the same rows"
        return f"{change} the first answer: NRMSE {format_number(new)} on {self.role} data, where {there}"


def compare_errors(new: float, old: float, points: int) -> str:
    """Compares root mean square errors of this many values, which chance changes by a factor of 1 + (2 points)^-1/2."""
    chance = (2 * points) ** -0.5 if points else 0.0
    if max(new, old) <= (1 + max(EQUAL_ERROR, chance)) * min(new, old):
        return "as good as"
    return "better than" if new < old else "no better than"


def find_telling_role(splits: Mapping[str, Dataset]) -> str:
    """Returns the role of the data for judging a model."""
    return next(role for role in TELLING_ROLES if role in splits)


def has_events(splits: Mapping[str, Dataset]) -> bool:
    return any(part.events is not None for part in splits.values())


def has_first_answer(splits: Mapping[str, Dataset], angles: object) -> bool:
    """Whether a first answer is possible; it does not support angles.

    **Arguments:** `angles`: states that the run treats as angles, which the data do not record yet.
    """
    return not angles and not any(part.angles for part in splits.values())


class FirstAnswerThread:
    """Computes, reports and plots the first answer in a thread while the fit compiles.

    Failures are ignored, since the end of the run repeats all of this.

    **Arguments:**

    - `splits`: data by their roles.
    - `picture`: the file to write.
    - `say`: called with the sentence.
    - `trajectories`: names of the trajectories to draw.
    - `field`, `draws`, `inputs`: as in `fit_without_compiling`.
    """

    def __init__(
        self,
        splits: Mapping[str, Dataset],
        picture: Path,
        say: Callable[[str], object],
        trajectories: Sequence[str],
        field: object = None,
        draws: int = 0,
        inputs: Interpolations | Literal["auto"] = "auto",
    ):
        self.splits, self.picture, self.say, self.trajectories = splits, picture, say, trajectories
        self.field, self.draws, self.inputs = field, draws, inputs
        self.answer: FirstAnswer | None = None
        self.said = threading.Event()
        # Not a daemon: a process that ends with an error waits for it, since Python can't exit while it computes.
        self.thread = threading.Thread(target=self.run, name="first answer")

    def begin(self) -> None:
        """Starts the thread, and waits briefly for the sentence."""
        with suppress(RuntimeError):  # No thread can be started.
            self.thread.start()
            self.said.wait(MAX_ANSWER_WAIT)

    def end(self) -> None:
        """Waits for the plot, which the plot of the fit then replaces."""
        if self.thread.is_alive():
            self.thread.join()

    def run(self) -> None:
        with suppress(Exception):
            try:
                self.answer = FirstAnswer.of(self.splits, self.field, self.draws, self.inputs)
                if self.answer is not None:
                    self.say(str(self.answer))
            finally:
                self.said.set()
            values = sum(part.ys.size for part in self.splits.values())
            if self.answer is not None and values <= MAX_DRAWN_VALUES:
                self.draw(self.answer)

    def draw(self, answer: FirstAnswer) -> None:
        if answer.equations is not None:
            curves, caption = equation_curves(self.splits, answer.equations), EQUATIONS_CAPTION
        elif "linear" in answer.nrmse:
            curves, caption = linear_curves(self.splits), LINEAR_CAPTION
        else:
            return
        self.picture.parent.mkdir(exist_ok=True)
        write_file(self.picture, png_of_fit(curves, caption, self.trajectories))


def equation_curves(splits: Mapping[str, Dataset], fit: FirstFit) -> Curves:
    """Returns the curves of known equations at the solver's steps."""
    dense = {role: (fit.ts[role], fit.ys[role]) for role in splits}
    return Curves(splits=dict(splits), dense=dense, at_rows={role: fit.at_rows(role) for role in splits})


def linear_curves(splits: Mapping[str, Dataset]) -> Curves:
    """Returns the curves of the linear model at rows of the data."""
    at_rows = {role: predict_baselines(splits[TRAIN], part)["linear"] for role, part in splits.items()}
    return Curves(
        splits=dict(splits),
        dense={role: curves_at_rows(part, at_rows[role]) for role, part in splits.items()},
        at_rows=at_rows,
    )


def curves_at_rows(data: Dataset, ys: np.ndarray) -> Dense:
    """Samples predictions at some rows as curves; shorter trajectories repeat rows."""
    shares = np.linspace(0, 1, min(data.ts.shape[1], MAX_CURVE_POINTS))
    rows = np.round(shares * (data.lengths[:, None] - 1)).astype(int)
    return np.take_along_axis(data.ts, rows, axis=1), np.take_along_axis(ys, rows[..., None], axis=1)
