"""`fit_population`: nonlinear mixed effects, from trajectories of several subjects to a fitted population."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import chi2, norm

from ..data.dataset import Dataset, check_data
from ..data.domains import from_line, slope
from ..data.facts import Facts, check_trainable
from ..fitting.resolve import resolve
from ..fitting.unmeasured import texts_by_state
from ..likelihood.losses import LEAST_SQUARES, AbstractLikelihood, as_loss
from ..model.fields.known import Hybrid
from ..model.initial_state.rule import First, Stated
from ..model.make_model import MakeField, MakeStart, keyword, make_model, maker_class
from ..model.neural_ode import NeuralODE
from ..options.options import Options, with_tolerance
from ..runtime.placement import scope
from ..runtime.serialization import Json
from ..runtime.validation import check_argument, check_choice, check_fields
from ..solver.problem import VectorField
from .effects import (
    Coordinate,
    Covariance,
    Occasions,
    RandomEffects,
    coordinates_of,
    read_covariance,
    read_occasions,
    with_occasions,
)
from .likelihood import POPULATION_METHODS, Method, Population, Structure, Watch, watch_nothing
from .noise import NOISE_KINDS, NoiseWords, ResidualNoise
from .prediction import KnownPopulation, PredictiveCheck, SubjectPredictions, check_by_simulation
from .saem import search_by_draws
from .search import MAX_GAIN, Optimum, find_hessian, leave_saddles, search_from_starts
from .subjects import Subjects, weights_as_coordinates

if TYPE_CHECKING:
    import pandas

# Default relative tolerance of the solver's steps.
RTOL = 1e-6
# An effect with a smaller variance, or a larger shrinkage, is not identifiable from the data.
LEAST_VARIANCE, LEAST_TOLD = 1e-4, 0.95
INTERVAL_LEVEL = 0.95
# Distance from a bound below which a constant counts as lying at it [share of the range between the bounds].
END_SHARE = 1e-3
# SAEM has converged if the objective changes by less than this while its gains fall.
MAX_DRIFT = 0.2
# Default size of a network beside equations, and the maximum number of its weights.
SMALL_NETWORK, MAX_WEIGHTS = {"width": 4, "depth": 1}, 300
# Minimum number of SAEM iterations; with fewer it can't approach the optimum and converge.
MIN_ITERATIONS = 100
Errors = Literal["observed", "sandwich"]


@dataclass(frozen=True)
class MixedEffects:
    """Settings of a population fit.

    **Arguments:**

    - `method`: `focei`, first-order conditional estimation with interaction; `foce`, in which the noise follows the
      typical prediction; `fo`, linear in the effects; `laplace`, with the exact curvature; or `saem`, stochastic
      approximation of expectation and maximisation, which does not approximate the likelihood.
    - `noise`: `additive`, `proportional`, `combined`, `power` or `lognormal`; for counts `poisson` or
      `negative_binomial`; for all channels or by channel; or initial values, such as `{c: {additive: 0.7}}`.
    - `covariance`: covariance of the effects: `diagonal`, `full`, or blocks, such as `[[cl, v]]`.
    - `nodes`: number of adaptive quadrature nodes per effect to check the objective at the optimum; no check if 0.
    - `evaluate`: whether to compute only the objective, at the parameters of the model.
    - `iterations`: number of SAEM iterations.
    - `errors`: source of the standard errors: `observed`, the observed information; or `sandwich`, which also uses the
      gradients of the subjects and is robust to a slightly wrong model.
    - `occasions`: the constants of `random` that also differ between the records of a subject, or their initial
      variances; trajectories `SUBJECT/RECORD` are then the records of a subject. None: each trajectory is a subject.
    - `weight_scale`: the standard deviation of the normal prior on the weights of a network in the equations.

    **Raises:** `ValueError` if a word is unknown.
    """

    method: Method = "focei"
    noise: NoiseWords = "additive"
    covariance: Covariance = "diagonal"
    nodes: int = 0
    evaluate: bool = False
    iterations: int = 500
    errors: Errors = "observed"
    occasions: Occasions = None
    weight_scale: float = 1.0

    def __post_init__(self):
        check_choice("method", self.method, [method for method in POPULATION_METHODS if method != "quadrature"])
        sentences = {"covariance": "diagonal, full, or lists of effects such as [['cl', 'v']]"}
        check_fields(self, sentences | {"occasions": "a list of constants such as ['cl'], or their variances, or None"})
        check_choice("errors", self.errors, get_args(Errors))
        if self.nodes < 0:
            raise ValueError(f"nodes must not be negative, got {self.nodes}.")
        if self.iterations < MIN_ITERATIONS:
            raise ValueError(f"iterations must be at least {MIN_ITERATIONS}, got {self.iterations}.")
        if self.occasions is not None:
            read_occasions(self.occasions)
            if self.method == "saem":
                raise ValueError("method saem has no occasions; use method focei, or leave occasions out.")
        if not self.weight_scale > 0:
            raise ValueError(f"weight_scale must be positive, got {self.weight_scale}.")
        if self.method == "saem" and self.evaluate:
            raise ValueError("evaluate computes an objective at given parameters, and saem has none; use focei.")


class Estimate(NamedTuple):
    """An estimate with its standard error and confidence interval, which are NaN if not identifiable."""

    value: float
    error: float
    lower: float
    upper: float


class Comparison(NamedTuple):
    """A likelihood-ratio test of a model without an effect.

    - `change`: increase of the objective without the effect. `p`: probability of at least this increase under a zero
      variance, which lies on the boundary (Self and Liang, J. Am. Stat. Assoc. 82, 1987).
    """

    name: str
    change: float
    p: float

    def __str__(self) -> str:
        word = "the data show it" if self.p < 0.05 else "the data do not show it"
        return (
            f"without the effect of {self.name}, the objective is {self.change:.3f} higher (p = {self.p:.2g}): {word}"
        )


@dataclass(frozen=True)
class PopulationFit:
    """A fitted population.

    - `optimum`: its parameters, and the mode of each subject. `hessian`: the Hessian of the objective there.
    - `objectives`: the final objective of the search from each start. `seconds`: duration of the fit.
    - `data`: the measurements. `drift`: for SAEM, the change of the parameters in its last iterations.
    """

    optimum: Optimum
    method: Method
    data: Dataset
    hessian: Float[np.ndarray, "parameter parameter"]
    objectives: tuple[float, ...] = ()
    quadrature: float | None = None
    seconds: float = 0.0
    evaluated: bool = False
    options: Options = field(default_factory=Options)
    settings: MixedEffects = field(default_factory=MixedEffects)
    drift: Float[np.ndarray, " parameter"] | None = None

    @property
    def problem(self) -> Population:
        return self.optimum.population

    @property
    def structure(self) -> Structure:
        return self.problem.structure

    @property
    def objective(self) -> float:
        """Minus twice the log-likelihood, without its constants 2 pi."""
        return self.optimum.value - self.structure.prior(self.optimum.x)[0]

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the probability (density) of the measurements."""
        exact = int(np.sum(self.problem.subjects.seen.exact))
        return exact * float(LEAST_SQUARES.log_peak()) - self.objective / 2

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of the constants with effects."""
        return tuple(self.structure.coordinates[at].name for at in self.structure.effects)

    @cached_property
    def model(self) -> NeuralODE:
        """The model of a typical subject."""
        return self.problem.subjects.model_at(self.optimum.x[: self.structure.ends[0]])

    @property
    def constants(self) -> dict[str, float]:
        """The constants of a typical subject, in the user's units."""
        return {name: constant.value for name, constant in self.fixed.items()}

    @cached_property
    def estimate_covariance(self) -> Float[np.ndarray, "parameter parameter"]:
        """The covariance of the parameters, from the observed information or the sandwich (White, Econometrica 50,
        1982); NaN for parameters that are not identifiable."""
        identifiable = self.is_identified
        covariance = np.full(self.hessian.shape, np.nan)
        at = np.ix_(identifiable, identifiable)
        if not np.isfinite(self.hessian[at]).all():
            return covariance
        values, vectors = np.linalg.eigh(self.hessian[at])
        if len(values) and values[0] > 0:
            inverse = (vectors / values) @ vectors.T
            slopes = self.optimum.slopes[:, identifiable]
            is_sandwich = self.settings.errors == "sandwich"
            covariance[at] = inverse @ slopes.T @ slopes @ inverse if is_sandwich else 2 * inverse
        return covariance

    @property
    def is_identified(self) -> np.ndarray:
        """Mask of the identifiable parameters: all but vanished variances and the weights of a network, which are
        redundant. Standard errors of the others are conditional on this network."""
        fixed, _, _ = self.structure.ends
        identifiable = np.ones(len(self.optimum.x), bool)
        identifiable[list(self.structure.weights)] = False
        variances = np.diag(self.problem.covariance(self.optimum.x))
        identifiable[fixed : fixed + len(variances)] = variances > LEAST_VARIANCE
        begin = fixed + self.structure.covariances.parameters
        occasions = slice(begin, begin + len(self.structure.occasions))
        identifiable[occasions] = np.exp(2 * self.optimum.x[occasions]) > LEAST_VARIANCE
        return identifiable

    @property
    def condition_number(self) -> float:
        """The condition number of the parameters' correlation matrix; large if some can't be distinguished."""
        identifiable = self.is_identified
        covariance = self.estimate_covariance[np.ix_(identifiable, identifiable)]
        if not np.isfinite(covariance).all():
            return float("nan")
        deviations = np.sqrt(np.diag(covariance))
        values = np.linalg.eigvalsh(covariance / np.outer(deviations, deviations))
        return float(values[-1] / values[0])

    @property
    def distance(self) -> float:
        """The decrease of the objective that another Newton step predicts, or for SAEM its change in the last
        iterations; NaN if its curvature is not positive."""
        identifiable = self.is_identified
        hessian = self.hessian[np.ix_(identifiable, identifiable)]
        if not np.isfinite(self.estimate_covariance[np.ix_(identifiable, identifiable)]).all():
            return float("nan")
        if self.drift is not None:
            return float(self.drift[identifiable] @ hessian @ self.drift[identifiable]) / 2
        gradient = self.optimum.gradient[identifiable]
        return float(gradient @ np.linalg.solve(hessian, gradient)) / 2

    @property
    def status(self) -> str:
        if self.evaluated:
            return "evaluated"
        return "converged" if self.distance < (MAX_GAIN if self.drift is None else MAX_DRIFT) else "stopped"

    @cached_property
    def fixed(self) -> dict[str, Estimate]:
        """The constants of a typical subject, in the user's units; intervals lie within their bounds."""
        estimates: dict[str, Estimate] = {}
        errors = np.sqrt(np.diag(self.estimate_covariance))
        z = float(norm.ppf(0.5 + INTERVAL_LEVEL / 2))
        for at, c in enumerate(self.structure.coordinates):
            if c.is_weight:
                continue
            middle, error = self.optimum.x[at], errors[at]
            value, lower, upper = (
                float(from_line(np.asarray(middle + side * error * z if side else middle), c.bounds))
                for side in (0, -1, 1)
            )
            estimates[c.name] = Estimate(value, float(error / slope(np.asarray(value), c.bounds)), lower, upper)
        return estimates

    @property
    def at_ends(self) -> dict[str, float]:
        """The constants of a typical subject that lie at a bound, with that bound."""
        ends: dict[str, float] = {}
        for c in self.structure.coordinates:
            lower, upper = c.bounds
            if c.is_weight or lower is None or upper is None:
                continue
            value = self.fixed[c.name].value
            nearest = lower if value - lower < upper - value else upper
            if abs(value - nearest) < END_SHARE * (upper - lower):
                ends[c.name] = nearest
        return ends

    @cached_property
    def variances(self) -> dict[str, Estimate]:
        """The variances of the effects, on the scale on which they are normal; covariances have the key `a,b`."""
        x, names = self.optimum.x, self.effects
        covariances = self.structure.covariances
        places = [(at, at) for at in range(len(names))] + covariances.pairs

        def elements(x: Array) -> Array:
            effects = np.array(self.structure.effects, int)
            factor = self.structure.parts(x).factor[0, effects, : covariances.effects]
            covariance = factor @ factor.T
            return jnp.stack([covariance[place] for place in places]) if places else x[:0]

        with scope("x64"):
            values = np.asarray(elements(jnp.asarray(x)))
            jacobian = np.asarray(jax.jacfwd(elements)(jnp.asarray(x)))
        covariance_or_zero = np.nan_to_num(self.estimate_covariance, nan=0.0)
        errors = np.sqrt(np.diag(jacobian @ covariance_or_zero @ jacobian.T))
        estimates: dict[str, Estimate] = {}
        for (row, column), value, error in zip(places, values, errors, strict=True):
            standard_error = float(error) if error > 0 else float("nan")
            name = names[row] if row == column else f"{names[row]},{names[column]}"
            estimates[name] = (
                positive_estimate(float(value), standard_error)
                if row == column
                else symmetric_estimate(float(value), standard_error)
            )
        return estimates

    @cached_property
    def occasion_variances(self) -> dict[str, Estimate]:
        """The variances of the effects of occasions, on the scale on which they are normal."""
        begin = self.structure.ends[0] + self.structure.covariances.parameters
        errors, estimates = np.sqrt(np.diag(self.estimate_covariance)), dict[str, Estimate]()
        for at, coordinate in enumerate(self.structure.occasions, start=begin):
            value = float(np.exp(2 * self.optimum.x[at]))
            estimates[self.structure.coordinates[coordinate].name] = positive_estimate(
                value, 2 * value * float(errors[at])
            )
        return estimates

    @cached_property
    def noise(self) -> dict[str, dict[str, Estimate]]:
        """The parameters of the noise, by channel."""
        begin = self.structure.ends[1]
        errors = np.sqrt(np.diag(self.estimate_covariance))
        estimates: dict[str, dict[str, Estimate]] = {}
        for at, name in enumerate(self.structure.noise.names, start=begin):
            channel, _, parameter = name.rpartition(".")
            value = float(np.exp(self.optimum.x[at]))
            estimates.setdefault(channel, {})[parameter] = positive_estimate(value, value * float(errors[at]))
        return estimates

    @cached_property
    def eta(self) -> Float[np.ndarray, "subject effect"]:
        """The effects of the subjects at their modes, without those of occasions."""
        own = self.optimum.z.copy()
        own[:, self.structure.covariances.effects :] = 0
        at = list(self.structure.effects)
        return (self.problem.phi(self.optimum.x, own) - self.optimum.x[: self.structure.ends[0]])[:, 0, at]

    @property
    def shrinkage(self) -> dict[str, float]:
        """The shrinkage: by how much the effects scatter less than their distribution, as a share; near 1 if the data
        carry little information about a subject (Savic and Karlsson, AAPS J. 11, 2009)."""
        deviations = np.sqrt(np.diag(self.problem.covariance(self.optimum.x)))
        return {
            name: float(1 - np.std(eta, ddof=1) / deviation)
            for name, eta, deviation in zip(self.effects, self.eta.T, deviations, strict=True)
        }

    @cached_property
    def individuals(self) -> "pandas.DataFrame":
        """The constants of each subject at its mode, with standard errors conditional on the population; with
        occasions, those of each record."""
        import pandas as pd

        problem = self.problem
        spread = problem.spread_of_modes(self.optimum.x, self.optimum.z)
        with scope("x64"):
            factor = np.asarray(self.structure.parts(jnp.asarray(self.optimum.x)).factor)
        subject, record = problem.subjects.places
        phi = problem.phi(self.optimum.x, self.optimum.z)[subject, record]
        table: dict[str, object] = {"subject": np.array(problem.subjects.names, object)[subject]}
        if self.structure.has_occasions:
            table["trajectory"] = self.data.trajectories
        values = problem.subjects.constants(phi)
        for at in self.structure.effects:
            c, own = self.structure.coordinates[at], factor[record, at]
            error = np.sqrt(np.einsum("te,tef,tf->t", own, spread[subject], own))
            table[c.name] = values[c.name]
            table[f"{c.name}_se"] = error / slope(values[c.name], c.bounds)
        return pd.DataFrame(table)

    @cached_property
    def at_rows(self) -> Float[np.ndarray, "trajectory row channel"]:
        """The prediction of each trajectory at its rows, from its own constants, in the user's units."""
        subjects, phi = self.problem.subjects, self.problem.phi(self.optimum.x, self.optimum.z)
        return subjects.by_trajectory(np.asarray(subjects.expand(phi).f))

    @cached_property
    def predictions(self) -> "pandas.DataFrame":
        """Each measurement with the prediction of its subject, of a typical subject, and its weighted residual.

        If some are limits, `limit` is the side of `observed` on which the value lies; these rows have no residual. If
        some lie between two limits, `other_end` is the second one.
        """
        import pandas as pd

        problem, subjects = self.problem, self.problem.subjects
        own = subjects.arrange(self.at_rows)
        typical = np.asarray(subjects.expand(problem.phi(self.optimum.x, problem.still)).f)
        noise = self.structure.noise
        deviation = noise.deviation(own, self.optimum.x[self.structure.ends[1] :])
        with scope("x64"):
            off = np.asarray(noise.transform(jnp.asarray(subjects.y))) - np.asarray(noise.transform(jnp.asarray(own)))
        residual = np.where(noise.is_count, subjects.y - own, off) / deviation
        subject, row, channel = np.nonzero(subjects.mask)
        table: dict[str, object] = {
            "subject": np.array(subjects.names, object)[subject],
            self.data.time: subjects.arrange(self.data.ts)[subject, row],
            "channel": np.array(self.data.states, object)[channel],
            "observed": subjects.y[subject, row, channel],
            "individual": own[subject, row, channel],
            "population": typical[subject, row, channel],
            "weighted_residual": np.where(subjects.seen.exact, residual, np.nan)[subject, row, channel],
        }
        if self.structure.has_occasions:
            names = np.array(self.data.trajectories, object)
            table["trajectory"] = names[subjects.members[subject, row // self.data.ts.shape[1]]]
        if subjects.seen.sides is not None:
            sides = np.asarray(subjects.seen.sides)[subject, row, channel]
            table["limit"] = np.array(["", "above", "below"], object)[sides]
        if subjects.seen.other_end is not None:
            table["other_end"] = np.asarray(subjects.seen.other_end)[subject, row, channel]
        return pd.DataFrame(table)

    @cached_property
    def known(self) -> KnownPopulation:
        """The population without its data, which `write_population` stores."""
        return KnownPopulation.of(self.optimum, self.method, self.data.trajectories)

    def predict(self, data: Dataset, level: float = 0.9) -> SubjectPredictions:
        """Predicts known subjects, new ones, and new ones with a few measurements; see `predict_subjects`."""
        return self.known.predict(data, level)

    def check_by_simulation(self, channel: str | None = None) -> PredictiveCheck:
        """Runs a visual predictive check: compares quantiles of the measurements with those of simulated studies."""
        return check_by_simulation(self.optimum, self.data, channel)

    @property
    def unidentified_effects(self) -> list[str]:
        """The effects that are not identifiable: their variance vanishes, or is noise of the estimates."""
        variances = np.diag(self.problem.covariance(self.optimum.x))
        return [
            name
            for name, variance in zip(self.effects, variances, strict=True)
            if variance < LEAST_VARIANCE or self.shrinkage[name] > LEAST_TOLD
        ]

    @property
    def unidentified_occasions(self) -> list[str]:
        """The constants whose variance between occasions is not identifiable."""
        return [name for name, variance in self.occasion_variances.items() if variance.value < LEAST_VARIANCE]

    def compare_without(self, name: str) -> Comparison:
        """Fits the model without the effect of a constant, and compares the two with a likelihood-ratio test.

        **Raises:** `ValueError` if the constant has none.
        """
        if name not in self.effects:
            raise ValueError(f"{name!r} has no effect; the effects are {', '.join(self.effects)}.")
        at = self.structure.effects[self.effects.index(name)]
        coordinates = tuple(
            replace(c, kind=None, occasion_variance=None) if i == at else c
            for i, c in enumerate(self.structure.coordinates)
        )
        index = self.effects.index(name)
        blocks = [tuple(i - (i > index) for i in block if i != index) for block in self.structure.covariances.blocks]
        covariances = self.structure.covariances._replace(blocks=tuple(block for block in blocks if block))
        partners = next(len(block) - 1 for block in self.structure.covariances.blocks if index in block)
        partners += self.structure.coordinates[at].occasion_variance is not None
        structure = replace(self.structure, coordinates=coordinates, covariances=covariances)
        subjects = replace(self.problem.subjects, coordinates=coordinates, model=self.model)
        optimum = estimate(Population(subjects, structure), self.settings, Options()).optimum
        change = max(optimum.value - self.optimum.value, 0.0)
        # The variances, and the covariances with its block: at the edge, a mixture of the two numbers of parameters.
        p = 0.5 * (float(chi2.sf(change, partners)) if partners else float(change <= 0)) + 0.5 * float(
            chi2.sf(change, partners + 1)
        )
        return Comparison(name, optimum.value - self.optimum.value, p)

    @property
    def population(self) -> Json:
        """The estimates in the form of `summary.json`."""
        fixed, variances = self.fixed, self.variances
        content: Json = {
            "objective": self.objective,
            "fixed": {name: parameter.value for name, parameter in fixed.items()},
            "variances": {name: parameter.value for name, parameter in variances.items()},
            "noise": {
                channel: {name: parameter.value for name, parameter in parameters.items()}
                for channel, parameters in self.noise.items()
            },
            "shrinkage": {name: number_or_none(parameter) for name, parameter in self.shrinkage.items()},
            "method": self.method,
            "standard_errors": {
                "fixed": {name: number_or_none(parameter.error) for name, parameter in fixed.items()},
                "variances": {name: number_or_none(parameter.error) for name, parameter in variances.items()},
                "noise": {
                    channel: {name: number_or_none(parameter.error) for name, parameter in parameters.items()}
                    for channel, parameters in self.noise.items()
                },
            },
            "intervals": {
                name: [number_or_none(parameter.lower), number_or_none(parameter.upper)]
                for name, parameter in fixed.items()
            },
            "effects": {c.name: c.kind for c in self.structure.coordinates if c.kind is not None},
            "condition_number": number_or_none(self.condition_number),
            "subjects": self.problem.subjects.count,
            "observations": int(self.problem.subjects.mask.sum()),
            "objectives": list(self.objectives),
            "errors": self.settings.errors,
        }
        if self.quadrature is not None:
            content["quadrature"] = self.quadrature
        if self.structure.has_occasions:
            content["occasions"] = {
                "records": len(self.data.trajectories),
                "variances": {name: parameter.value for name, parameter in self.occasion_variances.items()},
                "standard_errors": {
                    name: number_or_none(parameter.error) for name, parameter in self.occasion_variances.items()
                },
            }
        if self.structure.weights:
            content["weights"] = len(self.structure.weights)
        return content

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The estimates as lines of text."""
        subjects = self.problem.subjects
        limits = int(np.sum(subjects.seen.mask) - np.sum(subjects.seen.exact))
        lines = [
            f"PopulationFit of {subjects.count} subjects, {int(subjects.mask.sum())} measurements"
            f"{f' ({limits} beyond a limit)' if limits else ''} by {self.method}: {self.status}, "
            f"objective {self.objective:.3f}",
            f"{'':>22}  {'estimate':>10}  {'error':>9}  {'95 % interval':>22}  {'variance':>9}  {'error':>9}"
            "  shrinkage",
        ]
        shrinkage = self.shrinkage
        for name, estimated in self.fixed.items():
            line = f"{name:>22}  {describe_estimate(estimated)}"
            if name in shrinkage:
                spread = self.variances[name]
                line += f"  {spread.value:9.4g}  {format_value(spread.error)}  {100 * shrinkage[name]:8.0f}%"
            lines.append(line)
        lines += [
            f"{'covariance ' + name:>22}  {describe_estimate(estimated)}"
            for name, estimated in self.variances.items()
            if "," in name
        ]
        lines += [
            f"{f'occasion variance of {name}':>22}  {describe_estimate(estimated)}"
            for name, estimated in self.occasion_variances.items()
        ]
        for channel, parameters in self.noise.items():
            lines += [
                f"{channel + ' ' + name:>22}  {describe_estimate(estimated)}" for name, estimated in parameters.items()
            ]
        if self.structure.weights:
            lines.append(
                f"network: {len(self.structure.weights)} weights, which all subjects share; errors hold beside it"
            )
        lines.append(f"condition number of the estimates' correlations: {self.condition_number:.3g}")
        if self.quadrature is not None:
            lines.append(f"objective by adaptive quadrature: {self.quadrature:.3f}")
        return lines


def describe_estimate(each: Estimate) -> str:
    return f"{each.value:10.4g}  {format_value(each.error)}  {f'[{each.lower:.4g}, {each.upper:.4g}]':>22}"


def format_value(number: float) -> str:
    return f"{number:9.3g}" if np.isfinite(number) else f"{'-':>9}"


def number_or_none(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def positive_estimate(value: float, error: float) -> Estimate:
    """Returns an estimate whose logarithm is approximately normal."""
    with np.errstate(over="ignore"):  # The interval of an unidentifiable variance is unbounded.
        width = float(np.exp(norm.ppf(0.5 + INTERVAL_LEVEL / 2) * error / value)) if value > 0 else float("nan")
    return Estimate(value, error, value / width, value * width)


def symmetric_estimate(value: float, error: float) -> Estimate:
    width = float(norm.ppf(0.5 + INTERVAL_LEVEL / 2)) * error
    return Estimate(value, error, value - width, value + width)


def fit_population(
    train: Dataset,
    *,
    random: RandomEffects,
    field: MakeField | VectorField | str | None = None,
    hidden: int | Sequence[str] | None = None,
    start: MakeStart | str | None = None,
    population: MixedEffects | None = None,
    options: Options | None = None,
    tell: Callable[[int, Optimum | ValueError], None] = lambda number, end: None,
    watch: Watch = watch_nothing,
) -> PopulationFit:
    """Fits a population: a model whose constants differ between subjects, with one trajectory per subject.

    ```python
    fit = node_fit.fit_population(data, random=["ka", "cl"], field=field)
    print(fit, fit.population["objective"], fit.individuals)
    ```

    **Arguments:**

    - `train`: measurements, one trajectory per subject; doses as events, covariates as inputs.
    - `random`: the constants that differ, or their kinds by name: `lognormal` (the default of a positive constant),
      `logit` (between two bounds) or `normal`; or `{"kind": "lognormal", "variance": 0.04}` with an initial variance.
    - `field`, `hidden`, `start`: as in `fit`; the field is `Known`. By default, subjects with doses start at 0, and
      others at their first measurement.
    - `population`: the method, the noise and the covariance of the effects.
    - `options`: further options: `observation`, `scaling`, `solver`, `restarts`, `seed`.
    - `tell`: called with the number of each start and the result of its search.
    - `watch`: called with the method (first `pooled`, which has no effects) and the objective of each evaluation; for
      `saem`, with NaN in place of the objective.

    **Returns:** a `PopulationFit`.

    **Raises:** `ValueError` if an argument has the wrong type or does not fit the data.
    """
    began = time.perf_counter()
    check_data(train, "train")
    check_argument(
        "population", population, MixedEffects | None, "a node_fit.MixedEffects such as MixedEffects(noise='combined')"
    )
    given, population = {"field": field, "hidden": hidden, "start": start}, population or MixedEffects()
    options = replace(options or Options(), **{name: value for name, value in given.items() if value is not None})
    options = replace(options, precision="x64")
    population = with_noise_of(options.loss, population)
    train = options.scaling.mark_angles(train)
    check_subjects(train)
    with options.place.scope(), scope("x64"):
        problem = replace(build_population(train, random, population, options), watch=watch)
        if population.evaluate:
            optimum = evaluate_given(problem, population.method)
            estimates = Estimates(optimum, np.full((len(optimum.x),) * 2, np.nan))
        else:
            estimates = estimate(problem, population, options, tell)
        optimum = estimates.optimum
        quadrature = optimum.population.quadrature(optimum.x, optimum.z, population.nodes) if population.nodes else None
    return PopulationFit(
        optimum,
        population.method,
        train,
        estimates.hessian,
        tuple(estimates.values),
        quadrature,
        time.perf_counter() - began,
        population.evaluate,
        options,
        population,
        estimates.drift,
    )


class Estimates(NamedTuple):
    """Estimated parameters, with the Hessian, the final objectives of all searches, and SAEM's drift."""

    optimum: Optimum
    hessian: Float[np.ndarray, "parameter parameter"]
    values: Sequence[float] = ()
    drift: Float[np.ndarray, " parameter"] | None = None


def estimate(
    problem: Population,
    settings: MixedEffects,
    options: Options,
    tell: Callable[[int, Optimum | ValueError], None] = lambda number, end: None,
) -> Estimates:
    """Estimates the parameters of a population with the method of its settings.

    **Raises:** `ValueError` if the model can't be solved at its initial constants.
    """
    if settings.method == "saem":
        optimum, drift = search_by_draws(problem, settings.iterations, options.seed)
        return Estimates(optimum, find_hessian(optimum, "focei"), (optimum.value,), drift)
    restarts = options.restarts if isinstance(options.restarts, int) else 1
    optimum, values = search_from_starts(problem, settings.method, restarts, options.seed, tell)
    return Estimates(*leave_saddles(optimum, settings.method), values)


def check_subjects(train: Dataset) -> None:
    """Refuses data of a single subject, or with a subject that has no measurement."""
    check_trainable(train)
    measured = np.asarray((np.isfinite(train.ys) & train.mask).any(axis=(1, 2)))
    empty = [train.trajectories[at] for at in np.flatnonzero(~measured)]
    if empty:
        raise ValueError(f"subject {empty[0]!r} has no measurement; give it one, or leave its rows out.")
    if len(train.trajectories) < 2:
        raise ValueError(
            "a population needs several subjects, and the data have one trajectory; name the column that tells "
            "subjects apart, data.trajectory=ID, or leave random out."
        )


def build_population(train: Dataset, random: RandomEffects, population: MixedEffects, options: Options) -> Population:
    """Builds the model of a population before the fit.

    **Raises:** `ValueError` if the model has no constants or a large network, or a word is unknown.
    """
    options, states = with_small_network(options), list(texts_by_state(options.field))
    if options.hidden == "auto" and states:
        options = replace(options, hidden=[name for name in states if name not in train.states])
    if options.start == "auto":
        options = replace(
            options, start=partial(Stated, values=dict.fromkeys(states, 0.0)) if train.events and states else First
        )
    rtol = options.solver.rtol
    plan = resolve(options, Facts.of(train, None)).options
    # Steps between rows are fixed for any spacing of the rows, so keep the user's method.
    solver = replace(options.solver, inputs=plan.solver.inputs)
    tolerance = rtol if isinstance(rtol, float) else RTOL
    with scope("x64"):
        model = make_model(train, **replace(plan, prediction_solver=with_tolerance(solver, tolerance)).parts)
    model.check_channels(train)
    noise = ResidualNoise.of(population.noise, train.states)
    check_normal(train, population, noise)
    constants = with_occasions(coordinates_of(model, random), population.occasions)
    coordinates, has_occasions = (*constants, *weights_of(model, population)), population.occasions is not None
    effects = [c.name for c in coordinates if c.kind is not None]
    covariances = read_covariance(population.covariance, effects)
    subjects = Subjects.of(model, coordinates, train, has_occasions=has_occasions)
    if population.occasions and subjects.most_records == 1:
        raise ValueError(
            f"occasions are several records of one subject, trajectories SUBJECT/RECORD, and each subject has one: "
            f"{', '.join(train.trajectories[:3])}; name the column that tells them apart, data.occasion=OCC, or leave "
            "occasions out."
        )
    structure = Structure(
        coordinates, covariances, noise, population.weight_scale, subjects.most_records, has_occasions
    )
    return Population(subjects, structure)


def with_small_network(options: Options) -> Options:
    """Returns the options with a small network beside equations, unless they set its size."""
    if isinstance(options.field, eqx.Module) or maker_class(options.field) is not Hybrid:
        return options
    size = {name: value for name, value in SMALL_NETWORK.items() if keyword(options.field, name) is None}
    return replace(options, field=partial(cast(MakeField, options.field), **size))


def weights_of(model: NeuralODE, population: MixedEffects) -> tuple[Coordinate, ...]:
    """Returns the coordinates of the weights of a model's network.

    **Raises:** `ValueError` if the network has too many weights, or the method does not support a network.
    """
    weights = weights_as_coordinates(model)
    if len(weights) > MAX_WEIGHTS:
        raise ValueError(
            f"the network has {len(weights)} weights, and those of a population are at most {MAX_WEIGHTS}, since "
            "derivatives by each are computed for each subject; use a smaller one, field.width=4 field.depth=1."
        )
    if weights and population.method == "saem":
        raise ValueError("method saem has no network in its equations; use method focei, or field=known.")
    return weights


def with_noise_of(loss: AbstractLikelihood | str, population: MixedEffects) -> MixedEffects:
    """Returns the settings with the noise that a loss of counts implies.

    **Raises:** `ValueError` if populations do not support the loss, or it contradicts the noise.
    """
    loss = as_loss(loss)
    if type(loss) is type(LEAST_SQUARES):
        return population
    kinds: dict[type, str] = {type(kind.counts): name for name, kind in NOISE_KINDS.items() if kind.counts is not None}
    if type(loss) not in kinds:
        raise ValueError(
            f"loss={type(loss).__name__} is not one of populations, whose noise is that of population.noise: "
            f"{', '.join(NOISE_KINDS)}."
        )
    kind = kinds[type(loss)]
    if population.noise not in ("additive", kind):
        raise ValueError(f"loss={kind} and population.noise={population.noise!r} contradict each other; leave one out.")
    return replace(population, noise=kind)


def check_normal(train: Dataset, population: MixedEffects, noise: ResidualNoise) -> None:
    """Refuses method `fo`, which assumes normal measurements, with limits or counts, and refuses limits of counts."""
    if population.method == "fo" and (train.censored is not None or noise.is_count.any()):
        what = "values beyond a limit" if train.censored is not None else "counts"
        raise ValueError(
            f"method fo takes measurements as normal, and {what} are not; use method focei, or leave these rows out."
        )
    if train.censored is None:
        return
    for at in np.flatnonzero(noise.is_count & np.asarray(train.censored).any(axis=(0, 1))):
        raise ValueError(
            f"a value of {noise.channels[at]!r} is a limit, and its noise {noise.kinds[at]} is of counts, which are "
            "known or absent; leave these values empty, or use another noise."
        )


def evaluate_given(population: Population, method: Method) -> Optimum:
    """Evaluates the objective at the initial parameters."""
    structure = population.structure
    if [len(given) for given in structure.noise.given] != structure.noise.sizes:
        raise ValueError(
            "evaluate computes the objective at given parameters, so give the noise, too: population.noise="
            "{c: {additive: 0.7}}."
        )
    ones = [1.0] * len(structure.noise.channels)
    noise = structure.noise.first(ones, ones)
    x = np.concatenate([population.subjects.first(), structure.first_spread(), noise])
    population = population.refine_steps(x, population.still)
    z = population.still if method == "fo" else population.find_modes(x, interaction=method != "foce")
    population = population.refine_steps(x, z)
    value, slopes = population.objective_by_subject(x, z, method)
    return Optimum(population, x, z, value, slopes, 1)
