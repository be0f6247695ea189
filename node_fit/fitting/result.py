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
from ..discover.individuals import Individuals
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
from .readable import equations_of, notebook_page, readout_of
from .resolve import Choice
from .selection import Restarts

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, repr=False)
class Fit:
    """A fitted model with a record of the fit.

    - `model`: the model with the best parameters on the validation data (on the training data without them), or an
      `Ensemble` of all kept members, or of members drawn around that model (`Ensemble.center`).
    - `members`: outcomes of several members; empty for a single fit.
    - `status`: `converged`, `stopped` (on validation data), `completed` (all steps), `interrupted` or `failed`; and the
      `reason` in a sentence.
    - `history`: a `Record` for each chunk.
    - `steps`, `parameters`: number of steps taken, and of trained parameters.
    - `compiles`: XLA compilations of training chunks, as reported by JAX: one per stage, or none if the process has
      compiled that program before.
    - `cached`: training chunks loaded from JAX's compile cache instead.
    - `compile_seconds`, `train_seconds`: time spent [s].
    - `devices`: number of devices over which its arrays were spread.
    - `restarts`: results of several starts; None for one.
    - `data`: the data used for fitting (`train`) and selection (`validation`, if any).
    - `options`, `choices`: the options of the fit, and which of them were chosen automatically, with reasons.
    - `warnings`: suspicious findings in the training data.
    - `linear`: the linear state-space model from which the fit was initialized, if any.
    - `rival`: the linear system with many states identified from a long record, if it is not part of this fit.
    - `step_excess`: the largest error of a training step over its tolerance, if `solver.max_steps` keeps it high;
      0 otherwise.
    - `attempts`: the attempts with verdicts and errors, if more than one fit was made.
    - `horizon`: rows of the windows that the model predicts, if it cannot predict whole trajectories, as for chaos.
    - `log_evidence`: of a polynomial with pruned coefficients.
    - `optimum`: the fitted model, if `model` is an ensemble drawn around it.
    - `validated`: the model selected on the validation data, if `model` was fitted to them afterwards; scores on
      validation data are those of `validated`.
    - `left_out`: blocks of the data with predictions of models trained without them.
    - `steps_to_best`: steps of the last stage up to its best iterate.
    - `individuals`: equations that describe each trajectory with constants of its own, if no attempt describes all.
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
    individuals: Individuals | None = None

    def predict(self, data: Dataset | None = None, ts: Any = None, **given: Any) -> Float[np.ndarray, "... state"]:
        """Simulates trajectories in the user's units; see `NeuralODE.predict`."""
        return self.model.predict(data, ts, **given)

    def predict_frame(self, data: Dataset | None = None, ts: Any = None, **given: Any) -> Any:
        """Simulates trajectories and returns a `pandas.DataFrame` with a row for each time.

        ```python
        fit.predict_frame(test)  # trajectory, t, x, y
        fit.predict_frame(y0={"x": 1.0, "y": 0.0}, ts=np.linspace(0, 10, 101))
        ```

        **Arguments:** `data`, `ts`, and the keywords `y0` and `u`: see `NeuralODE.predict`. `level` (keyword): level of
        an ensemble's bands, in columns `x_lower` and `x_upper` for a state `x`; 0.9 by default.
        """
        return self.model.predict_frame(data, ts, **given)

    def to_xarray(self, data: Dataset | None = None, level: float = 0.9) -> "xarray.Dataset":
        """Returns measured and simulated trajectories as an `xarray.Dataset` (extra `netcdf`).

        ```python
        fit.to_xarray(test)["x_predicted"].sel(trajectory="A")
        ```

        **Arguments:** `data`: by default the training data. `level`: level of an ensemble's bands.

        **Returns:** variables `x` and `x_predicted` for each state `x`, `x_lower` and `x_upper` for an ensemble, and
        the inputs. Dimensions are trajectory and time, or trajectory and `row` if times differ between trajectories.

        **Raises:** `ValueError` if xarray is not installed.
        """
        data = self.mark_angles(self.data["train"] if data is None else data)
        return as_xarray(data, self.model.bands(data, level=level))

    def bands(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None, level: float = 0.9
    ) -> Prediction:
        """Simulates trajectories, with bands if the model is an ensemble; see `Ensemble.bands`."""
        return self.model.bands(data, ts, level)

    def score(self, data: Dataset) -> Score:
        """Scores simulated against measured trajectories, in the user's units.

        Rows from which starts are read do not count.
        """
        return score(self.model, data)

    def mask_start_rows(self, data: Dataset, *, trained: bool = False) -> Dataset:
        """Returns the data with the rows from which starts are read excluded from scoring; see `score_values`."""
        return score_values(self.model, data, trained=trained)

    def mark_angles(self, data: Dataset) -> Dataset:
        """Returns the data with the angles of the fit named."""
        check_data(data, "data")
        return self.model.typical.scaler.mark_angles(data)

    def simple_scores(self, train: Dataset, data: Dataset, *, trained: bool = False) -> dict[str, Score]:
        """Scores simple models on the scored rows: the mean, the last known value, a linear ODE, and the linear
        state-space model from which the fit was initialized, if any.

        **Arguments:** `train`: the data to fit the simple models. `data`: the data to predict. `trained`: see
        `score_values`.
        """
        scored = self.mask_start_rows(data, trained=trained)
        simple = self.simple_predictions(train, data, trained=trained)
        return {name: metrics.score_predictions(scored, ys) for name, ys in simple.items()}

    def simple_predictions(
        self, train: Dataset, data: Dataset, *, trained: bool = False
    ) -> dict[str, Float[np.ndarray, "trajectory time state"]]:
        """Returns the predictions of the simple models of `simple_scores`."""
        simple = predict_baselines(self.mark_angles(train), self.mask_start_rows(data, trained=trained))
        if (best := self.rival or self.linear) is not None:
            simple["state-space"] = best.predict(data)
        return simple

    @property
    def is_linear(self) -> bool:
        """Whether the result is the initial linear model, because training found no better one."""
        return self.linear is not None and bool(eqx.tree_equal(self.model, self.linear))

    def score_chaos(self, train: Dataset, data: Dataset | None = None) -> ChaosScores | None:
        """Scores a fit to a chaotic system, which only predicts windows (`horizon`); None for other fits.

        **Arguments:** `train`: the full training records; the fit itself holds only windows of them. `data`: full
        records to forecast; `train` by default.
        """
        if self.horizon is None or isinstance(self.model, Ensemble):
            return None
        return score_chaos(self.model, self.mark_angles(train), self.mark_angles(train if data is None else data))

    def assess(
        self,
        data: Dataset | Mapping[str, Dataset] | None = None,
        level: float | None = None,
        chaos: ChaosScores | None = None,
        gate: bool = True,
        pictured: Collection[str] = (),
    ) -> Assessment:
        """Computes scores, scores of simple models, verdict and residuals from one simulation of the data.

        **Arguments:**

        - `data`: the training data, or data by role (`train`, `validation`, `test`); by default the fit's training and
          validation data.
        - `level`: the share of measurements that bands should cover; if None, curves and bands are omitted.
        - `chaos`: scores of a chaotic system (`score_chaos`).
        - `gate`: whether to also simulate a well-fitting model three times longer, from other starts and inputs.
        - `pictured`: names of the trajectories whose curves are needed, if the data hold thousands.
        """
        splits = self.data if data is None else {"train": data} if isinstance(data, Dataset) else data
        simulated = None if level is None else self.simulate(splits, level, pictured)
        predicted = (
            {name: self.model_of(name).predict(part) for name, part in splits.items()}
            if simulated is None
            else simulated.at_rows
        )
        typical = self.model.typical
        case = Case(
            self.status,
            # Losses do not describe the model if it is not the trained one, or was trained further on other rows.
            [] if self.is_linear or self.validated is not None else self.history,
            {
                name: self.with_noise(self.mask_start_rows(part, trained=name == "train"), predicted[name])
                for name, part in splits.items()
            },
            predicted,
            {
                name: self.simple_predictions(splits["train"], part, trained=name == "train")
                for name, part in splits.items()
            },
            self.options,
            self.step_excess,
            {choice.key for choice in self.choices if not choice.is_advised}
            | {key for attempt in self.attempts for key in attempt.keys},
            self.has_enough_hidden,
            bool(network_weights((typical.field, typical.start))),
            typical.scaler,
            chaos,
            splits,
            (lambda: self.find_escape(splits["train"])) if gate else None,
            describe_constants_at_ends(typical, self.options),
            (lambda: self.distance) if is_equations_alone(typical.field) else None,
            any(choice.key == "field" and choice.value == "sparse" for choice in self.choices),
            self.left_out,
            None if self.individuals is None else self.individuals.advice,
        )
        return assess(case, simulated)

    def simulate(self, splits: Mapping[str, Dataset], level: float = 0.9, pictured: Collection[str] = ()) -> Simulated:
        """Simulates data by role, with bands of a level; validation data use the model that they judge."""
        simulated = simulate_splits(self.model, dict(splits), level, pictured)
        if self.validated is None or "validation" not in splits:
            return simulated
        # Simulate all splits again: a single split would compile another program.
        return simulated.with_split("validation", simulate_splits(self.validated, dict(splits), level, pictured))

    def model_of(self, role: str) -> NeuralODE | Ensemble:
        """Returns the model judged by the data of a role."""
        return self.validated if role == "validation" and self.validated is not None else self.model

    def find_escape(self, train: Dataset) -> Escape | None:
        """Finds where simulations three times as long as the training data run away; None if nowhere or for windows."""
        if self.horizon is not None:
            return None
        model = self.model.typical
        reads = max(model.start.given_rows or 0, model.start.past + model.start.washout)
        return find_escape(model.predict, model.scaler.mark_angles(train), reads)

    @property
    def distance(self) -> float:
        """The distance of the constants from the likelihood optimum [standard errors]; 0 if it can't be determined."""
        try:
            return Information(self.evidence).distance
        except Unsure:
            return 0.0

    @property
    def has_enough_hidden(self) -> bool:
        """Whether the last attempt with more hidden states and the same readout was no better."""
        more = [attempt for attempt in self.attempts if attempt.keys[:1] == ("hidden",)]
        return bool(more) and not more[-1].kept

    def diagnose(self, data: Dataset | Mapping[str, Dataset] | None = None) -> Diagnosis:
        """Judges the fit and suggests next steps: the verdict of `assess`."""
        return self.assess(data).verdict

    @property
    def constants(self) -> dict[str, float]:
        """The fitted constants of known equations and starts by name, in the user's units."""
        return self.model.constants()

    @property
    def equations(self) -> dict[str, str]:
        """The right-hand sides of the field by state, in the user's names and units, if it has equations.

        For `Known` and `Hybrid`, the equations are as written, with `constants` kept separate and `network(...)` for a
        network's contribution. For `Linear`, they contain the fitted numbers. Other fields have none.
        """
        return equations_of(self.model)

    @property
    def readout(self) -> dict[str, str]:
        """The channels that are formulas of states and inputs, in the user's names and units, by channel.

        For `LinearReadout` and `DirectReadout`, they contain the fitted numbers. Empty if channels are states or are
        read by a network.
        """
        return readout_of(self.model)

    def confidence(self, method: Method = "fisher", level: float = 0.95) -> Confidence:
        """Computes confidence intervals of the constants from the training data.

        ```python
        print(fit.confidence())  # k1 = 0.0451 [0.0438, 0.0465]
        ```

        **Arguments:**

        - `method`: `fisher`, from the linearised model, or `profile`, from fits with one constant held fixed, which is
          exact for nonlinear models, too.
        - `level`: the coverage probability of the intervals.

        **Returns:** a `Confidence`, whose intervals lie within the constants' bounds.

        **Raises:** `ValueError` without constants, or if the fit is not a least-squares optimum of few parameters.
        """
        check_argument("method", method, Method)
        check_argument("level", level, float)
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}.")
        confidence = (profile if method == "profile" else find_fisher_intervals)(self.evidence, level)
        return with_derived(with_differences(confidence, self.evidence), self.evidence, self.options.derived)

    @property
    def derived(self) -> Mapping[str, ConfidenceInterval]:
        """The quantities defined by the option `derived`, with the intervals from `confidence()`."""
        return self.confidence().derived

    def laplace(self, size: int = 32) -> Ensemble:
        """Draws an ensemble from the Laplace approximation of the posterior, without further training.

        For models with few parameters; a network needs a prior, `penalty.ridge`. Validation data calibrate its bands.

        **Arguments:** `size`: number of members.

        **Raises:** `ValueError` if the fit is not a least-squares optimum of few parameters, or lacks a prior.
        """
        information, validation = Information(self.evidence), self.data.get("validation")
        train, validation = (
            self.mark_angles(self.data["train"]),
            None if validation is None else self.mark_angles(validation),
        )
        return draw_laplace(information, size, self.options.seed, train, validation)

    def likelihood(self) -> Likelihood:
        """Computes the likelihood of the training data; its `aic` and `bic` compare models of the same data.

        Noise is normal, or as defined by the `loss` of the fit.

        **Raises:** `ValueError` if the fit is not a least-squares optimum of few parameters.
        """
        return compute_likelihood(self.evidence)

    def check_residuals(self, data: Dataset | None = None) -> ResidualChecks:
        """Tests whether the residuals are independent noise, as assumed by intervals and likelihood.

        **Arguments:** `data`: the training data by default.
        """
        scored = self.mask_start_rows(self.data["train"] if data is None else data, trained=data is None)
        predicted = self.predict(scored)
        return check_residuals(self.with_noise(scored, predicted), predicted, self.model.typical.scaler)

    def with_noise(self, data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> Dataset:
        """Returns the data with the noise model's standard deviations at the predictions, if the fit has one."""
        loss = self.options.loss
        assert isinstance(loss, AbstractLikelihood)
        return with_model_noise(self.model.typical, loss, data, predicted)

    @cached_property
    def evidence(self) -> Evidence:
        """The sum of squares near the optimum, from which confidence intervals and likelihood are computed."""
        model = self.model if self.optimum is None else self.optimum
        if isinstance(model, Ensemble):
            raise Unsure("an ensemble of several members has no single optimum.")
        if self.status == "failed" or "train" not in self.data:
            raise Unsure("the fit has failed." if self.status == "failed" else "the fit does not hold its data.")
        train = self.mark_angles(self.data["train"])
        return Evidence(model, self.options, stages_of(self.options, model, Facts.of(train))[0], train)

    def equilibria(
        self, u: Mapping[str, float] | None = None, within: Mapping[str, tuple[float, float]] | None = None
    ) -> list[Linearization]:
        """Finds the equilibria of the fitted model, with their modes.

        ```python
        for point in fit.equilibria(u={"heater": 1.0}):
            print(point)  # stable node at T = 41.2, heater = 1 ...
        ```

        **Arguments:**

        - `u`: inputs by name [unit of each]; by default their typical values in the training data.
        - `within`: ranges of states to search, by name; by default four standard deviations around the mean of the
          training data.

        **Returns:** a list of `Linearization`, nearest to the mean of the training data first; empty if none exists.

        **Raises:** `ValueError` if a name is unknown, or the equilibria are so numerous that they likely form a curve.
        """
        return find_equilibria(self.model.typical, u, within)

    def linearize(self, at: Mapping[str, float] | None = None, u: Mapping[str, float] | None = None) -> Linearization:
        """Linearizes the fitted model at a point: eigenvalues, modes, step and frequency responses.

        ```python
        point = fit.linearize(at={"x": 0.0, "v": 0.0}, u={"force": 0.0})
        point.modes[0].damping, point.frequency_response().bandwidth("x", "force")
        ```

        **Arguments:** `at`, `u`: states and inputs by name [unit of each]; by default their typical values in the
        training data.

        **Raises:** `ValueError` for an unknown state or input.
        """
        return linearize_near(self.model.typical, at, u)

    def hopf_points(
        self,
        parameter: str,
        between: tuple[float, float],
        u: Mapping[str, float] | None = None,
        within: Mapping[str, tuple[float, float]] | None = None,
    ) -> list[HopfPoint]:
        """Finds the values of an input or a constant at which an equilibrium starts or stops oscillating.

        **Arguments:** `parameter`: the name of an input or of a fitted constant. `between`: its first and last value.
        `u`, `within`: as in `equilibria`, at the first value.

        **Raises:** `ValueError` for an unknown input or constant.
        """
        return find_hopf_points(self.model.typical, parameter, between, u, within)

    def plot(self, trajectories: Sequence[str] | None = None, **splits: Dataset) -> Any:
        """Plots data and simulated curves against time.

        **Arguments:**

        - `trajectories`: names of the trajectories to draw, in order; by default the best, the median and the worst.
        - `splits`: further data by role, such as `test=test`.

        **Returns:** a `matplotlib.figure.Figure`, for display in a notebook or for `savefig`.

        **Raises:** `ValueError` if a trajectory name is unknown.
        """
        parts = {name: self.mark_angles(part) for name, part in {**self.data, **splits}.items()}
        simulated = self.simulate(parts, pictured=trajectories or ())
        counted = {name: self.mask_start_rows(part, trained=name == "train") for name, part in parts.items()}
        return fit_figure(Curves.of(simulated, counted), trajectories)

    def save(self, path: str | Path) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        save(self.model, path)

    @cached_property
    def _html(self) -> str:
        return notebook_page(self)

    def _repr_html_(self) -> str:
        """Returns the notebook representation: the verdict, the constants and the picture."""
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
