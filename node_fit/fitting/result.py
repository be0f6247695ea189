"""The result of a fit."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..analysis.equilibria import HopfPoint, find_equilibria, find_hopf_points
from ..analysis.linearization import Linearization, linearize_near
from ..data.dataset import Dataset, check_data
from ..data.facts import Facts
from ..evaluation import metrics
from ..evaluation.as_xarray import as_xarray
from ..evaluation.baselines import predict_baselines
from ..evaluation.case import Case
from ..evaluation.chaos import ChaosScores, score_chaos
from ..evaluation.diagnosis import Assessment, Diagnosis, assess
from ..evaluation.ends import describe_constants_at_ends
from ..evaluation.metrics import Score, score, score_values
from ..evaluation.new_data import HeldOut
from ..evaluation.noise import with_model_noise
from ..evaluation.residuals import ResidualChecks, check_residuals
from ..evaluation.simulation import Simulated, simulate_splits
from ..evaluation.stability import Escape, find_escape
from ..likelihood.losses import AbstractLikelihood
from ..model.ensemble import Ensemble
from ..model.make_model import is_equations_alone
from ..model.neural_ode import NeuralODE
from ..model.parameters import network_weights
from ..model.rollout import Prediction
from ..options.options import Options
from ..plots.curves import Curves
from ..plots.figures import fit_figure
from ..runtime.validation import check_argument
from ..storage.model_file import save
from ..training.callback import Record, Status
from ..training.decisions import Outcome
from ..uncertainty.confidence import (
    Confidence,
    ConfidenceInterval,
    Method,
    draw_laplace,
    find_fisher_intervals,
    profile,
    with_derived,
    with_differences,
)
from ..uncertainty.likelihood import Likelihood, compute_likelihood
from ..uncertainty.linearization import Evidence, Information, Unsure
from .problem import stages_of
from .readable import equations_of, notebook_page
from .resolve import Choice
from .selection import Restarts

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, repr=False)
class Fit:
    """A fitted model, and how the fit went.

    - `model`: the model with the best parameters on the validation data (on the training data if there are none), or an
      `Ensemble` of all members that are kept, or of members drawn around that model (`Ensemble.center`).
    - `members`: how each of several members ended; empty for a single fit.
    - `status`: `converged`, `stopped` (on validation data), `completed` (all steps), `interrupted` or `failed`; and the
      `reason` in a sentence.
    - `history`: a `Record` for each chunk.
    - `steps`, `parameters`: number of steps taken, and of trained parameters.
    - `compiles`: XLA compilations of training chunks, as JAX reports them: one per stage, or none if the process has
      compiled that program before.
    - `cached`: training chunks that came from JAX's compile cache instead.
    - `compile_seconds`, `train_seconds`: where the time went [s].
    - `devices`: over how many its arrays were spread.
    - `restarts`: what came of several starts; None for one.
    - `data`: what it was fitted to (`train`) and chosen on (`validation`, if there was some).
    - `options`, `choices`: with which it was fitted, and what was chosen of them, and why.
    - `warnings`: what looked wrong in the training data.
    - `linear`: the linear state-space model that it began from, if it did.
    - `rival`: the linear system of many states that a long record tells, if it is no part of this fit.
    - `step_excess`: the largest error of a training step over its tolerance, where `solver.max_steps` keeps it high;
      0 elsewhere.
    - `attempts`: what was tried, if more than one fit was; each with its verdict and errors.
    - `horizon`: rows of the windows that the model predicts, where it predicts no whole trajectory, as of chaos.
    - `log_evidence`: of a polynomial whose coefficients have been thinned out.
    - `optimum`: the fitted model, where `model` is an ensemble drawn around it.
    - `validated`: the model that validation data have chosen, where `model` was fitted to them afterwards; their scores
      are those of this one.
    - `left_out`: blocks of the data, and predictions of models that were trained without them.
    - `steps_to_best`: steps of the last stage after which its best iterate was reached.
    """

    model: NeuralODE | Ensemble
    status: Status
    reason: str
    history: list[Record]
    steps: int
    parameters: int
    compiles: int
    cached: int
    compile_seconds: float
    train_seconds: float
    members: tuple[Outcome, ...] = ()
    devices: int = 1
    restarts: Restarts | None = None
    data: Mapping[str, Dataset] = field(default_factory=dict[str, Dataset])
    options: Options = field(default_factory=Options)
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    linear: NeuralODE | None = None
    rival: NeuralODE | None = None
    step_excess: float = 0.0
    attempts: tuple[Any, ...] = ()
    horizon: int | None = None
    log_evidence: float | None = None
    optimum: NeuralODE | None = None
    validated: NeuralODE | None = None
    left_out: tuple[HeldOut, ...] = ()
    steps_to_best: int = 0

    def predict(self, data: Dataset | None = None, ts: Any = None, **given: Any) -> Float[np.ndarray, "... state"]:
        """Simulated trajectories in the user's units; see `NeuralODE.predict`."""
        return self.model.predict(data, ts, **given)

    def predict_frame(self, data: Dataset | None = None, ts: Any = None, **given: Any) -> Any:
        """Simulated trajectories as a `pandas.DataFrame`, with a row for each time.

        ```python
        fit.predict_frame(test)  # trajectory, t, x, y
        fit.predict_frame(y0={"x": 1.0, "y": 0.0}, ts=np.linspace(0, 10, 101))
        ```

        **Arguments:** `data`, `ts`, and `y0` and `u` by name: as of `NeuralODE.predict`. `level`, by name: of the
        bands of an ensemble, which are the columns `x_lower` and `x_upper` of a state `x`; 0.9 by default.
        """
        return self.model.predict_frame(data, ts, **given)

    def to_xarray(self, data: Dataset | None = None, level: float = 0.9) -> "xarray.Dataset":
        """Measured and simulated trajectories as an `xarray.Dataset` (the extra `netcdf`).

        ```python
        fit.to_xarray(test)["x_predicted"].sel(trajectory="A")
        ```

        **Arguments:** `data`: by default the training data. `level`: of bands, if the model is an ensemble.

        **Returns:** variables `x` and `x_predicted` of each state `x`, `x_lower` and `x_upper` of an ensemble, and the
        inputs, over the trajectory and the time, or over the trajectory and the `row` where each has its own times.

        **Raises:** `ValueError` if xarray is not installed.
        """
        data = self.marked(self.data["train"] if data is None else data)
        return as_xarray(data, self.model.bands(data, level=level))

    def bands(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None, level: float = 0.9
    ) -> Prediction:
        """Simulated trajectories with bands if there are several members; see `Ensemble.bands`."""
        return self.model.bands(data, ts, level)

    def score(self, data: Dataset) -> Score:
        """How well simulated trajectories match the measured ones, in the user's units.

        Rows that starts are read from do not count.
        """
        return score(self.model, data)

    def scored(self, data: Dataset, *, trained: bool = False) -> Dataset:
        """The data, of which the rows that starts are read from do not count; see `score_values`."""
        return score_values(self.model, data, trained=trained)

    def marked(self, data: Dataset) -> Dataset:
        """The data with the angles of the fit named."""
        check_data(data, "data")
        return self.model.typical.scaler.marked(data)

    def simple_scores(self, train: Dataset, data: Dataset, *, trained: bool = False) -> dict[str, Score]:
        """Scores of simple models on the rows that count: the mean, the last known value, a linear ODE, and the linear
        state-space model that the fit began with, if any.

        **Arguments:** `train`: the data that they are fitted to. `data`: the data that they predict. `trained`: as of
        `score_values`.
        """
        scored = self.scored(data, trained=trained)
        simple = self.simple_predictions(train, data, trained=trained)
        return {name: metrics.score_predictions(scored, ys) for name, ys in simple.items()}

    def simple_predictions(
        self, train: Dataset, data: Dataset, *, trained: bool = False
    ) -> dict[str, Float[np.ndarray, "trajectory time state"]]:
        """Predictions of the simple models of `simple_scores`."""
        simple = predict_baselines(self.marked(train), self.scored(data, trained=trained))
        if (best := self.rival or self.linear) is not None:
            simple["state-space"] = best.predict(data)
        return simple

    @property
    def is_linear(self) -> bool:
        """Whether the result is the linear model that the fit began with, since training has found no better one."""
        return self.linear is not None and bool(eqx.tree_equal(self.model, self.linear))

    def score_chaos(self, train: Dataset, data: Dataset | None = None) -> ChaosScores | None:
        """Scores of a fit to a chaotic system, of which it predicts windows only (`horizon`); None of other fits.

        **Arguments:** `train`: the whole records that were fitted; the fit itself holds windows of them. `data`: whole
        records to forecast; `train` by default.
        """
        if self.horizon is None or isinstance(self.model, Ensemble):
            return None
        return score_chaos(self.model, self.marked(train), self.marked(train if data is None else data))

    def assess(
        self,
        data: Dataset | Mapping[str, Dataset] | None = None,
        level: float | None = None,
        chaos: ChaosScores | None = None,
        gate: bool = True,
        pictured: Collection[str] = (),
    ) -> Assessment:
        """Scores, scores of simple models, verdict and residuals, of one simulation of the data.

        **Arguments:**

        - `data`: the training data, or data by their roles, `train`, `validation` and `test`; by default the fit's own
          training and validation data.
        - `level`: the share of measurements that bands should cover; curves and bands are left out if None.
        - `chaos`: scores of a chaotic system (`score_chaos`).
        - `gate`: whether a model that fits well is also simulated three times longer, from other starts and inputs.
        - `pictured`: names of trajectories whose curves are wanted, of data with thousands.
        """
        given = self.data if data is None else {"train": data} if isinstance(data, Dataset) else data
        simulated = None if level is None else self.simulate(given, level, pictured)
        predicted = (
            {name: self.model_of(name).predict(part) for name, part in given.items()}
            if simulated is None
            else simulated.at_rows
        )
        typical = self.model.typical
        case = Case(
            self.status,
            # The losses of a model that was not kept, or was trained further on other rows, say nothing of it.
            [] if self.is_linear or self.validated is not None else self.history,
            {
                name: self.with_noise(self.scored(part, trained=name == "train"), predicted[name])
                for name, part in given.items()
            },
            predicted,
            {
                name: self.simple_predictions(given["train"], part, trained=name == "train")
                for name, part in given.items()
            },
            self.options,
            self.step_excess,
            {choice.key for choice in self.choices if not choice.is_advised}
            | {key for attempt in self.attempts for key in attempt.keys},
            self.has_enough_hidden,
            bool(network_weights((typical.field, typical.start))),
            typical.scaler,
            chaos,
            given,
            (lambda: self.find_escape(given["train"])) if gate else None,
            describe_constants_at_ends(typical, self.options),
            (lambda: self.distance) if is_equations_alone(typical.field) else None,
            any(choice.key == "field" and choice.value == "sparse" for choice in self.choices),
            self.left_out,
        )
        return assess(case, simulated)

    def simulate(self, splits: Mapping[str, Dataset], level: float = 0.9, pictured: Collection[str] = ()) -> Simulated:
        """Simulates data by their roles, with bands of a level; validation data with the model that they judge."""
        found = simulate_splits(self.model, dict(splits), level, pictured)
        if self.validated is None or "validation" not in splits:
            return found
        # All splits again, since for one alone another program would be compiled.
        return found.with_split("validation", simulate_splits(self.validated, dict(splits), level, pictured))

    def model_of(self, role: str) -> NeuralODE | Ensemble:
        """The model that data of a role judge."""
        return self.validated if role == "validation" and self.validated is not None else self.model

    def find_escape(self, train: Dataset) -> Escape | None:
        """Where simulations three times as long as the training data run away; None if they stay, or for windows."""
        if self.horizon is not None:
            return None
        model = self.model.typical
        reads = max(model.start.given_rows or 0, model.start.past + model.start.washout)
        return find_escape(model.predict, model.scaler.marked(train), reads)

    @property
    def distance(self) -> float:
        """How far the constants are from the optimum of the likelihood [standard errors]; 0 where nothing tells."""
        try:
            return Information(self.evidence).distance
        except Unsure:
            return 0.0

    @property
    def has_enough_hidden(self) -> bool:
        """Whether the last attempt with more hidden states, and no other readout, was no better."""
        more = [attempt for attempt in self.attempts if attempt.keys[:1] == ("hidden",)]
        return bool(more) and not more[-1].kept

    def diagnose(self, data: Dataset | Mapping[str, Dataset] | None = None) -> Diagnosis:
        """Judges the fit, and says what to try next: the verdict of `assess`."""
        return self.assess(data).verdict

    @property
    def constants(self) -> dict[str, float]:
        """The fitted constants of known equations and starts by their names, in the user's units."""
        return self.model.constants()

    @property
    def equations(self) -> dict[str, str]:
        """The right-hand sides of the field by state, in the user's names and units, where it has equations.

        Those of `Known` and `Hybrid` are as they were written, with `constants` apart, and with `network(...)` for what
        a network adds; those of `Linear` have their numbers. Other fields have none.
        """
        return equations_of(self.model)

    def confidence(self, method: Method = "fisher", level: float = 0.95) -> Confidence:
        """How sure the constants are, by the training data.

        ```python
        print(fit.confidence())  # k1 = 0.0451 [0.0438, 0.0465]
        ```

        **Arguments:**

        - `method`: `fisher`, from the linearised model; or `profile`, from fits with one constant held, which is exact
          where the model bends.
        - `level`: the share of intervals that cover the true constants.

        **Returns:** a `Confidence`, whose intervals lie within the constants' bounds.

        **Raises:** `ValueError` if there are no constants, or the fit is no least-squares optimum of few parameters.
        """
        check_argument("method", method, Method)
        check_argument("level", level, float)
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}.")
        found = (profile if method == "profile" else find_fisher_intervals)(self.evidence, level)
        return with_derived(with_differences(found, self.evidence), self.evidence, self.options.derived)

    @property
    def derived(self) -> Mapping[str, ConfidenceInterval]:
        """The quantities that `derived` named when the fit was made, with intervals as `confidence()` gives them."""
        return self.confidence().derived

    def laplace(self, size: int = 32) -> Ensemble:
        """An ensemble drawn from the Laplace approximation of the posterior, without further training.

        For models of few parameters; a network needs a prior, `penalty.ridge`. Validation data calibrate its bands.

        **Arguments:** `size`: number of members.

        **Raises:** `ValueError` if the fit is no least-squares optimum of few parameters, or lacks a prior.
        """
        information, validation = Information(self.evidence), self.data.get("validation")
        train, validation = self.marked(self.data["train"]), None if validation is None else self.marked(validation)
        return draw_laplace(information, size, self.options.seed, train, validation)

    def likelihood(self) -> Likelihood:
        """How probable the training data are; `aic` and `bic` compare models of the same data.

        Noise is normal, or as the `loss` of the fit says.

        **Raises:** `ValueError` if the fit is no least-squares optimum of few parameters.
        """
        return compute_likelihood(self.evidence)

    def check_residuals(self, data: Dataset | None = None) -> ResidualChecks:
        """Whether the residuals are independent noise, as intervals and likelihood assume.

        **Arguments:** `data`: the training data by default.
        """
        scored = self.scored(self.data["train"] if data is None else data, trained=data is None)
        predicted = self.predict(scored)
        return check_residuals(self.with_noise(scored, predicted), predicted, self.model.typical.scaler)

    def with_noise(self, data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> Dataset:
        """The data with the standard deviations that a noise model gives at predictions; without one as they are."""
        loss = self.options.loss
        assert isinstance(loss, AbstractLikelihood)
        return with_model_noise(self.model.typical, loss, data, predicted)

    @cached_property
    def evidence(self) -> Evidence:
        """The sum of squares near the optimum, which confidence and likelihood are made of."""
        model = self.model if self.optimum is None else self.optimum
        if isinstance(model, Ensemble):
            raise Unsure("an ensemble of several members has no single optimum.")
        if self.status == "failed" or "train" not in self.data:
            raise Unsure("the fit has failed." if self.status == "failed" else "the fit does not hold its data.")
        train = self.marked(self.data["train"])
        return Evidence(model, self.options, stages_of(self.options, model, Facts.of(train))[0], train)

    def equilibria(
        self, u: Mapping[str, float] | None = None, within: Mapping[str, tuple[float, float]] | None = None
    ) -> list[Linearization]:
        """The points at which the fitted model rests, each with its modes.

        ```python
        for point in fit.equilibria(u={"heater": 1.0}):
            print(point)  # stable node at T = 41.2, heater = 1 ...
        ```

        **Arguments:**

        - `u`: inputs by name [unit of each]; by default their typical values in the training data.
        - `within`: ranges of states in which to look, by name; by default four standard deviations of the training data
          around their mean.

        **Returns:** a `Linearization` at each, that nearest the mean of the training data first; none if there is none.

        **Raises:** `ValueError` if a name is unknown, or there are so many that they are likely a curve.
        """
        return find_equilibria(self.model.typical, u, within)

    def linearize(self, at: Mapping[str, float] | None = None, u: Mapping[str, float] | None = None) -> Linearization:
        """The fitted model near a point: eigenvalues, modes, responses to steps and to sines.

        ```python
        point = fit.linearize(at={"x": 0.0, "v": 0.0}, u={"force": 0.0})
        point.modes[0].damping, point.frequency_response().bandwidth("x", "force")
        ```

        **Arguments:** `at`, `u`: states and inputs by name [unit of each]; by default their typical values in the
        training data.

        **Raises:** `ValueError` if there is no such state or input.
        """
        return linearize_near(self.model.typical, at, u)

    def hopf_points(
        self,
        parameter: str,
        between: tuple[float, float],
        u: Mapping[str, float] | None = None,
        within: Mapping[str, tuple[float, float]] | None = None,
    ) -> list[HopfPoint]:
        """The values of an input or a constant at which an equilibrium begins to oscillate, or ceases to.

        **Arguments:** `parameter`: the name of an input or of a fitted constant. `between`: its first and last value.
        `u`, `within`: as of `equilibria`, at the first value.

        **Raises:** `ValueError` if there is no such input or constant.
        """
        return find_hopf_points(self.model.typical, parameter, between, u, within)

    def plot(self, trajectories: Sequence[str] | None = None, **splits: Dataset) -> Any:
        """Data and curves against time.

        **Arguments:**

        - `trajectories`: names of those that are drawn, in this order; by default the best, the median and the worst.
        - `splits`: further data by their roles, such as `test=test`.

        **Returns:** a `matplotlib.figure.Figure`, which a notebook shows and `savefig` writes.

        **Raises:** `ValueError` if there is no trajectory of a name.
        """
        parts = {name: self.marked(part) for name, part in {**self.data, **splits}.items()}
        found = self.simulate(parts, pictured=trajectories or ())
        counted = {name: self.scored(part, trained=name == "train") for name, part in parts.items()}
        return fit_figure(Curves.of(found, counted), trajectories)

    def save(self, path: str | Path) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        save(self.model, path)

    @cached_property
    def _html(self) -> str:
        return notebook_page(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, the constants and the picture."""
        return self._html

    def __repr__(self) -> str:
        typical, last = self.model.typical, self.history[-1] if self.history else None
        kept = f" ({len(self.model.members)} members)" if isinstance(self.model, Ensemble) else ""
        loss = "no chunk was run"
        sure = " .confidence()," if typical.constants() else ""
        if last is not None:
            held = "" if last.validation_loss is None else f", validation {last.validation_loss:.3g}"
            loss = f"training loss {last.train_loss:.3g}{held}"
        return "\n".join(
            (
                f"Fit of {', '.join(typical.states)}{kept}: {self.status}",
                f"  {self.reason}",
                f"  {self.steps} steps, {self.parameters} parameters; {loss}",
                f"  {self.train_seconds:.1f} s of training, {self.compile_seconds:.1f} s of compiling",
                *(f"  chosen: {choice}" for choice in self.choices),
                f"  .score(data), .predict(data),{sure} .diagnose(), .plot(), .save(path)",
            )
        )
