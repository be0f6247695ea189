"""Confidence intervals of fitted constants, profile likelihoods, and ensemble members for prediction bands."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..data.domains import Bounds, from_line, slope
from ..data.groups import BY_TRAJECTORY
from ..evaluation.residuals import neighbours_in_words
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model import parameters
from ..model.ensemble import Ensemble
from ..model.fields.known import Constants, Local, Quantity, quantities
from ..model.neural_ode import NeuralODE
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..runtime.placement import scope_of
from ..runtime.serialization import Json
from ..training.programs import LinearisedStage
from .derived import ENDLESS, Range, Region, find_error, find_range, is_undetermined
from .linearization import Evidence, Information, Noise, Place, Unsure

# Standard error, in units of the constants' own sizes, above which a direction is undetermined.
VAGUE = 1.0
# Share, relative to the largest, below which a constant is not named.
NAMED = 0.1
# Difference below which two shares count as equal.
EQUAL = 0.05
# Distance in units of a constant's own size (for a positive one: power of e) beyond which an interval has no end.
FARTHEST_POINT = 10.0
# Ratio of standard error to value above which an unbounded constant is unknown.
LARGE = 1e3
# First trial step and maximum step, in the units of `FARTHEST_POINT`.
LONGEST_STEP = 1.0
# Relative accuracy of a threshold, maximum number of trials on a side, and maximum number of evaluations in a trial.
ACCURATE, MOST_HALVINGS, NEWTON_EVALUATIONS = 3e-3, 40, 25
# Steps are damped only if undamped ones lower nothing; the second value is the minimum damping.
WHERE_NEEDED, NO_DAMPING = Damping(0.0, maximum=5e7, rejected_minimum=1e-3), 3e-7
# Predicted decrease of the sum of squares, in variances, below which a fit with a fixed constant has converged.
SETTLED = 1e-4

Vector = Float[np.ndarray, " parameter"]


NOT_DESCRIBED = (
    "The equations do not describe the training data from this start, so these intervals say little: look at the "
    "start, at the first values of the constants and at the equations first."
)


def find_undetermined(information: Information) -> list[str]:
    """Returns a sentence for each direction of the constants that the data do not determine.

    A fit that does not describe the data gives no evidence on this; a better fit might.
    """
    if not information.evidence.is_described:
        return [NOT_DESCRIBED]
    errors, vectors = information.directions
    vague = errors > VAGUE
    names = [place.name for place in information.places]
    sentences = by_penalties(
        [name for name, place in zip(names, information.determined_by_penalties, strict=True) if place]
    )
    for direction in simplest_set(vectors[vague]) if vague.any() else ():
        among = [index for index in range(len(names)) if abs(direction[index]) > NAMED]
        if information.determined_by_penalties[among].all():
            continue
        shares = direction * information.sizes / information.magnitudes
        sentence = name_constants([names[index] for index in among], shares[among])
        alone = information.root[:, [information.places[index].index for index in range(len(names))]]
        sizes = information.columns[[place.index for place in information.places]] * information.sizes
        unit = direction / np.linalg.norm(direction)
        if np.linalg.norm(alone @ (sizes * unit)) > np.sqrt(information.variance) / VAGUE:
            sentence += ", since other fitted quantities can compensate for a change"
        sentences.append(sentence + ".")
    return sentences


def by_penalties(names: Sequence[str]) -> list[str]:
    """Describes the constants that only the penalties determine, in a sentence."""
    if not names:
        return []
    one = len(names) == 1
    return [
        f"{join_names(names)} {'is' if one else 'are'} not determined by these data: other fitted quantities can "
        "compensate for a change, and only the penalties (penalty.ridge) decide."
    ]


def join_names(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])


def simplest_set(vectors: Float[np.ndarray, "direction constant"]) -> Float[np.ndarray, "direction constant"]:
    """Returns a sparse basis of the same directions: each moves few constants, and its largest entry is 1."""
    from scipy.linalg import qr

    order = qr(vectors, pivoting=True)[-1]
    reduced = np.linalg.solve(vectors[:, order[: len(vectors)]], vectors)
    return reduced / np.abs(reduced).max(axis=1, keepdims=True)


def name_constants(names: Sequence[str], shares: Float[np.ndarray, " constant"]) -> str:
    """Names the undetermined constants and the combination of them that is determined."""
    if len(names) == 1:
        return f"{names[0]} is not determined by these data"
    equal = np.ptp(np.abs(shares)) < EQUAL * np.abs(shares).max()
    together = equal and (np.sign(shares) == np.sign(shares[0])).all()
    if together:
        what = "their ratio" if len(names) == 2 else "their ratios"
    elif equal and len(names) == 2:
        what = "their product"
    else:
        what = "a combination of them"
    return (
        f"{join_names(names)} are not determined by these data: only {what} "
        f"{'are' if what.endswith('ratios') else 'is'}"
    )


Method = Literal["fisher", "profile"]
# Correlation above which a pair of constants is reported.
STRONG = 0.95
# Distance from the optimum, in standard errors, above which a fit's intervals are not centered on it.
FAR_FROM_NORMAL = 0.2
READS_FIRST_ROW = (
    "The first row of each trajectory counts as exact (start=first); start=fitted start.given=all lets its noise into "
    "the intervals."
)


@dataclass(frozen=True)
class ConfidenceInterval:
    """A constant with its interval, in the user's units.

    - `estimate`, `standard_error`: the fitted value and its standard error, infinite if nothing is known.
    - `lower`, `upper`: the interval's ends, within the constant's bounds; infinite without an end.
    """

    estimate: float
    standard_error: float
    lower: float
    upper: float

    def as_dict(self) -> dict[str, float | None]:
        """For JSON; None for a number that is not finite."""
        return {key: value if math.isfinite(value) else None for key, value in asdict(self).items()}

    @staticmethod
    def of(content: Mapping[str, float | None]) -> "ConfidenceInterval":
        """The inverse of `as_dict`."""
        ends = {"lower": -math.inf}
        return ConfidenceInterval(
            **{key: ends.get(key, math.inf) if value is None else value for key, value in content.items()}
        )


@dataclass(frozen=True)
class Confidence:
    """Confidence intervals of the constants of a fit.

    - `method`, `level`: `fisher` or `profile`, and the share of intervals that cover the true constants.
    - `noise`: whether it was `given` or `estimated`. `degrees_of_freedom`: those of its estimate; None if given.
    - `constants`: a `ConfidenceInterval` for each constant.
    - `correlations`: pairs of constants whose estimates are correlated by more than 0.95, and their correlation.
    - `undetermined`: sentences about directions that the data do not determine.
    - `notes`: remarks on the intervals.
    - `derived`: a `ConfidenceInterval` for each derived quantity, in the user's order.
    """

    method: Method
    level: float
    noise: Noise
    degrees_of_freedom: float | None
    constants: Mapping[str, ConfidenceInterval]
    correlations: tuple[tuple[str, str, float], ...]
    undetermined: tuple[str, ...]
    notes: tuple[str, ...]
    derived: Mapping[str, ConfidenceInterval] = field(default_factory=dict[str, ConfidenceInterval])

    def as_dict(self) -> Json:
        """For JSON; None for a number that is not finite."""
        content = asdict(self)
        for key in ("constants", "derived"):
            content[key] = {name: interval.as_dict() for name, interval in getattr(self, key).items()}
        return content

    def __str__(self) -> str:
        lines = [
            ", ".join(format_with_interval(name, interval) for name, interval in part.items())
            for part in (self.constants, self.derived)
        ]
        return "\n".join([*filter(None, lines), *self.undetermined, *self.notes])


def find_fisher_intervals(evidence: Evidence, level: float) -> Confidence:
    """Computes intervals from the linearised model at the optimum.

    **Raises:** `Unsure` without constants, or with too few values.
    """
    if not evidence.constants:
        raise Unsure("the field has no constants that are trained.")
    information = Information(evidence)
    errors = np.where(information.determined_by_penalties, np.inf, information.errors)
    reach = quantile(information, level) * errors
    constants: dict[str, ConfidenceInterval] = {}
    for place, error, far, size in zip(information.places, errors, reach, information.sizes, strict=True):
        middle = evidence.x[place.index] * place.scale
        line = size * place.scale
        constants[place.name] = interval_of(place, middle, error * line, middle - far * line, middle + far * line)
    given = evidence.noise == "given"
    return Confidence(
        method="fisher",
        level=level,
        noise=evidence.noise,
        degrees_of_freedom=None if given else information.degrees_of_freedom,
        constants=constants,
        correlations=strong_correlations(information),
        undetermined=tuple(find_undetermined(information)),
        notes=tuple(notes_on(information)),
    )


def quantile(information: Information, level: float) -> float:
    """Returns half the width of an interval in standard errors: Student's t, or the normal's if the noise was given."""
    from scipy.special import ndtri, stdtrit

    tail = (1 + level) / 2
    if information.evidence.noise == "given":
        return float(ndtri(tail))
    _ = information.variance  # Refuses too few values.
    return float(stdtrit(information.degrees_of_freedom, tail))


def interval_of(place: Place, middle: float, error: float, low: float, high: float) -> ConfidenceInterval:
    """Converts an interval on the real line to the user's units; a very distant end becomes the bound."""
    estimate = at_line(middle, place.bounds)
    return ConfidenceInterval(
        estimate=estimate,
        standard_error=error / float(slope(np.asarray(estimate), place.bounds)),
        lower=end_of(low, middle, place.bounds, -1),
        upper=end_of(high, middle, place.bounds, 1),
    )


def end_of(z: float, middle: float, bounds: Bounds, side: int) -> float:
    unbounded = bounds == (None, None)
    if math.isfinite(z) and (unbounded or abs(z - middle) < ENDLESS):
        return at_line(z, bounds)
    bound = bounds[0] if side < 0 else bounds[1]
    return side * math.inf if bound is None else bound


def at_line(z: float, bounds: Bounds) -> float:
    return float(from_line(np.asarray(z, np.float64), bounds))


def with_derived(found: Confidence, evidence: Evidence, texts: Mapping[str, str | float] | None) -> Confidence:
    """Adds the intervals of derived quantities, if any.

    An interval is the range of a quantity over the confidence region of its constants. For a single constant this is
    its interval, so the result is equally exact; for several, it is the ellipsoid of the linearised model.
    """
    if not texts:
        return found
    information, values = Information(evidence), evidence.model.constants()
    parts = [node for _, node in parameters.parameter_nodes(evidence.model, Constants)]
    bounds = {name: pair for node in parts for name, pair in zip(node.names, node.bounds, strict=True)}
    reach = quantile(information, found.level)
    derived: dict[str, ConfidenceInterval] = {}
    notes: list[str] = []
    for quantity in quantities(texts, tuple(values)):
        estimate = float(quantity.of(values))
        positive = quantity.is_positive(bounds) and estimate > 0
        error = find_error(quantity, information, values, positive=positive)
        places = [place for place in information.places if quantity.uses(place.name)]
        if len(places) == 1:
            ends = find_image(quantity, places[0], found.constants[places[0].name], values, positive)
        elif not places:
            ends = Range(estimate, estimate)
        elif math.isinf(error) and is_undetermined(quantity, information, values):
            ends = Range(0.0 if positive else -math.inf, math.inf)
        else:
            ends = find_range(quantity, Region.around(information, places, reach), values, positive=positive)
            if found.method == "profile":
                notes.append(f"{quantity.name} is of several constants: its interval is that of the linearised model.")
        if ends.why:
            notes.append(f"{quantity.name} {ends.why}, so its own has no {name_open_ends(ends)}.")
        derived[quantity.name] = ConfidenceInterval(estimate, error, ends.lower, ends.upper)
    return replace(found, derived=derived, notes=(*found.notes, *notes))


def name_open_ends(ends: Range) -> str:
    if math.isinf(ends.lower) and math.isinf(ends.upper):
        return "ends"
    return "upper end" if math.isinf(ends.upper) else "lower end"


def find_image(
    quantity: Quantity, place: Place, own: ConfidenceInterval, values: Mapping[str, float], positive: bool
) -> Range:
    """Computes the range of a quantity over the interval of its only constant, whose ends can be infinite."""
    region = Region.between(place, own.lower, own.upper, own.estimate)
    within = find_range(quantity, region, values, positive=positive)
    outer = np.broadcast_to(quantity.of({**values, place.name: np.array([own.lower, own.upper])}), 2)
    limits = outer[~np.isnan(outer)].tolist()
    return within._replace(lower=min([within.lower, *limits]), upper=max([within.upper, *limits]))


def strong_correlations(information: Information) -> tuple[tuple[str, str, float], ...]:
    names, errors = [place.name for place in information.places], information.errors
    pairs: list[tuple[str, str, float]] = []
    for i in range(len(names)):
        for j in range(i):
            scale = errors[i] * errors[j]
            value = information.covariance[i, j] / scale if 0 < scale < math.inf else math.nan
            if abs(value) > STRONG:
                pairs.append((names[j], names[i], round(float(value), 4)))
    return tuple(pairs)


def ways_nearer(evidence: Evidence) -> str:
    """Suggests unused options that bring a fit nearer to its optimum."""
    ways = ["set precision=x64"] if evidence.kind == "x32" else []
    ways += [] if isinstance(evidence.optimizer, LevenbergMarquardt) else ["use optimizer=lm"]
    return ", or ".join((*ways, "raise training.steps"))


def notes_on(information: Information) -> list[str]:
    notes: list[str] = []
    if not information.is_determined.any():
        return notes
    if information.distance > FAR_FROM_NORMAL:
        notes.append(
            f"The fit is {information.distance:.2g} standard errors from its optimum, so the intervals are off by as "
            f"much; {ways_nearer(information.evidence)}."
        )
    for sentence in neighbours_in_words(information.evidence.residual_checks):
        positive = all((check.lag1 or 0) >= 0 for check in information.evidence.residual_checks.values())
        notes.append(f"{sentence[:-1]}: the intervals are {'too narrow' if positive else 'off'}.")
    if information.evidence.model.start.is_first_measurement:
        notes.append(READS_FIRST_ROW)
    return notes


# Significance level of the test whether the values of a local constant differ.
DIFFER = 0.01


def with_differences(found: Confidence, evidence: Evidence) -> Confidence:
    """Adds a note for each local constant on whether its values differ."""
    local = evidence.model.local
    differences = [describe_difference(Information(evidence), constant) for constant in local] if local else []
    return replace(found, notes=(*found.notes, *filter(None, differences)))


def describe_difference(information: Information, local: Local) -> str | None:
    """Describes whether the values of a local constant differ significantly, by Wald's test (Seber and Wild, 5.3).

    None if the data leave one of them open.
    """
    places = [place for place, candidate in enumerate(information.places) if candidate.name in local.members]
    if len(places) < 2 or not np.isfinite(information.errors[places]).all():
        return None
    lines = np.array([information.evidence.x[information.places[place].index] for place in places])
    covariance = information.covariance[np.ix_(places, places)] * np.outer(*[information.sizes[places]] * 2)
    contrasts = np.eye(len(places))[1:] - np.eye(len(places))[:1]
    apart = contrasts @ lines
    square = float(apart @ np.linalg.solve(contrasts @ covariance @ contrasts.T, apart))
    freedom = len(places) - 1
    p = chance_of(square, freedom, information)
    between = "trajectories" if local.by == BY_TRAJECTORY else f"groups of {local.by!r}"
    verdict = (
        f"differ between {between} by more than chance"
        if p < DIFFER
        else "differ by no more than chance, so a shared one may do"
    )
    test = f"Wald's chi-square {square:.3g}, {freedom} degrees of freedom, p {p:.1g}"
    return f"The values of {local.name} {verdict} ({test})."


def chance_of(square: float, freedom: int, information: Information) -> float:
    """Computes the p-value of this statistic from the chi-square distribution, or from F if the noise is estimated."""
    from scipy.special import chdtrc, fdtrc

    if information.evidence.noise == "given":
        return float(chdtrc(freedom, square))
    return float(fdtrc(freedom, information.degrees_of_freedom, square / freedom))


def format_with_interval(name: str, found: ConfidenceInterval) -> str:
    """Formats as `k1 = 0.0451 [0.0438, 0.0465]`, with enough digits to distinguish the ends."""
    half = (found.upper - found.lower) / 2
    size = max(abs(found.estimate), abs(found.lower), abs(found.upper))
    digits = 3
    if 0 < half < math.inf and 0 < size < math.inf:
        digits = min(max(math.floor(math.log10(size / half)) + 2, 3), 12)
    estimate, lower, upper = (f"{value:.{digits}g}" for value in (found.estimate, found.lower, found.upper))
    return f"{name} = {estimate} [{lower}, {upper}]"


@dataclass(frozen=True)
class Profile:
    """Fits with one parameter fixed.

    **Arguments:**

    - `stage`: the fit's sum of squares, over held steps that are accurate over the whole interval.
    - `variance`: the variance of a weighted residual. `tolerance`: singular values below this share of the largest are
      rounding errors.
    """

    stage: LinearisedStage
    variance: float
    tolerance: float

    def point(self, x: Vector) -> LinearisedPoint:
        return self.stage.at(x).with_prior(x)

    def refit_at(self, near: LinearisedPoint, index: int, to: float) -> LinearisedPoint:
        """Computes the best fit with the parameter of this number fixed at a value, starting from one nearby."""
        held = np.zeros_like(near.x)
        held[index] = to - near.x[index]
        free = np.arange(len(held)) != index
        # The linearised model predicts how the others follow; if it is inaccurate, they follow less.
        there = self.point(near.x + held)
        tried = (self.point(near.step(d, free, held, rcond=self.tolerance)) for d in (0.0, 1e-3, 1e-1, 10.0))
        return self.minimise(next((point for point in tried if point.value < there.value), there), free)

    def minimise(self, here: LinearisedPoint, free: Bool[np.ndarray, " parameter"]) -> LinearisedPoint:
        """Fits the `free` parameters by damped Gauss-Newton steps."""

        def step(at: LinearisedPoint, damping: float) -> Vector:
            return at.step(damping if damping > NO_DAMPING else 0.0, free, rcond=self.tolerance)

        def is_still(old: LinearisedPoint, new: LinearisedPoint) -> bool:
            return abs(old.value - new.value) < SETTLED * self.variance

        rule = DampedSteps(step, WHERE_NEEDED, max_evaluations=NEWTON_EVALUATIONS, is_still=is_still)
        return minimize(here, rule, self.point) if free.any() else here

    def end(self, best: LinearisedPoint, index: int, size: float, error: float, wanted: float, limit: float) -> float:
        """Computes the distance that a parameter can move until the sum of squares has risen to a threshold.

        **Arguments:**

        - `best`: the optimum. `index`: the parameter's number.
        - `size`: the unit of distance; its sign is the side.
        - `error`: its standard error in that unit. `wanted`: the threshold, in standard errors.
        - `limit`: the distance at which the search ends.

        **Returns:** the distance in that unit; infinite if the threshold is not reached.
        """
        inside, rise_inside, near, outside, rise_outside = 0.0, 0.0, best, math.inf, math.inf
        distance = min(wanted * error, LONGEST_STEP)
        for _ in range(MOST_HALVINGS):
            there = self.refit_at(near, index, best.x[index] + distance * size)
            rise = math.sqrt(max(there.value - best.value, 0.0) / self.variance)
            if abs(rise - wanted) < ACCURATE * wanted or outside - inside < ACCURATE * inside:
                return distance
            if rise < wanted:
                inside, rise_inside, near = distance, rise, there
            else:
                outside, rise_outside = distance, rise
            if inside >= limit:
                return math.inf
            if math.isinf(outside):
                longer = inside * min(max(1.02 * wanted / max(rise_inside, 1e-3), 1.2), 3.0)
                distance = min(longer, inside + LONGEST_STEP) if inside >= LONGEST_STEP else longer
            else:
                share = (wanted - rise_inside) / (rise_outside - rise_inside) if math.isfinite(rise_outside) else 0.5
                distance = inside + min(max(share, 0.05), 0.95) * (outside - inside)
        return distance


def profile(evidence: Evidence, level: float) -> Confidence:
    """Computes intervals from profile likelihoods.

    An interval ends where a fit with the constant fixed there is worse by the threshold of an F-test, or of a chi2 test
    if the noise was given (Bates and Watts, Nonlinear Regression Analysis, 1988, section 6.1).

    **Raises:** `Unsure` as `fisher` does.
    """
    if evidence.loss.robust:
        raise Unsure("profiles are of least squares; use confidence=fisher with this loss.")
    around = find_fisher_intervals(evidence, level)
    information = Information(evidence)
    wanted = quantile(information, level)
    with scope_of(evidence.model):
        stage = evidence.stage.refine_at(corners(information, wanted))
        fits = Profile(stage, information.variance, information.tolerance)
        best = fits.minimise(fits.point(evidence.x), np.ones(len(evidence.x), bool))
        constants: dict[str, ConfidenceInterval] = {}
        open_sides: list[str] = []
        known = zip(information.places, information.sizes, information.errors, strict=True)
        for (place, size, error), penalised in zip(known, information.determined_by_penalties, strict=True):
            if penalised:  # A profile would only reflect the penalties.
                constants[place.name] = around.constants[place.name]
                continue
            # An unbounded constant can be near zero, so its value does not bound how far it can move.
            limit = (
                max(FARTHEST_POINT, 5 * wanted * error)
                if place.bounds == (None, None) and error < LARGE
                else FARTHEST_POINT
            )
            low, high = (fits.end(best, place.index, side * size, error, wanted, limit) for side in (-1, 1))
            old = around.constants[place.name]
            constants[place.name] = profile_interval(place, old, best.x[place.index], size, low, high)
            # Completely unknown constants are named already.
            open_sides += open_side(place.name, low, high) if math.isfinite(error) else []
    return replace(around, method="profile", constants=constants, undetermined=(*around.undetermined, *open_sides))


def corners(information: Information, wanted: float) -> list[Vector]:
    """Returns the approximate parameters at the ends of the intervals, from the linearised model."""
    evidence = information.evidence
    points: list[np.ndarray] = []
    best = evidence.best.with_prior(evidence.x)
    for place, size, error in zip(information.places, information.sizes, information.errors, strict=True):
        for side in (-1, 1):
            held = np.zeros_like(evidence.x)
            held[place.index] = side * size * min(wanted * error, LONGEST_STEP)
            free = np.arange(len(held)) != place.index
            points.append(best.step(0.0, free, held, rcond=information.tolerance))
    return points


def profile_interval(
    place: Place, old: ConfidenceInterval, middle: float, size: float, low: float, high: float
) -> ConfidenceInterval:
    """Makes the interval from the distances to its ends, in units of the constant's size."""
    z, unit = middle * place.scale, size * place.scale
    return replace(
        old, lower=end_of(z - low * unit, z, place.bounds, -1), upper=end_of(z + high * unit, z, place.bounds, 1)
    )


def open_side(name: str, low: float, high: float) -> list[str]:
    """Describes the end that an interval lacks."""
    if math.isfinite(low) and math.isfinite(high):
        return []
    if math.isinf(low) and math.isinf(high):
        return [f"The profile of {name} is flat: much smaller and much larger values fit these data as well."]
    end, values = ("upper", "larger") if math.isinf(high) else ("lower", "smaller")
    return [
        f"The profile of {name} has one side only: much {values} values fit these data as well, so it has no {end} end."
    ]


# Factor by which members are closer to the fit than posterior samples. The Laplace approximation is the posterior of
# the linearised model, and full steps would leave the region where that holds (A. Immer, M. Korzepa and M. Bauer,
# "Improving predictions of Bayesian neural nets via local linearization", AISTATS 2021).
CLOSER = 100.0
# Members are even closer if a constant that the data leave open would move by more than this share of its size, such as
# a rate to negative values. The second value is the maximum factor; beyond it, solver errors dominate the differences.
MAX_MEMBER_MOVE, CLOSEST = 0.1, 1e5


def draw_laplace(
    information: Information, size: int, seed: int, train: Dataset, validation: Dataset | None
) -> Ensemble:
    """Samples an ensemble around the fit: normally distributed parameters, in pairs on opposite sides.

    Equations have bands in forecasts, too, since their errors come from their constants; networks are wrong outside the
    training data. The covariance is the inverse of the linearised sum of squares with the prior, times the variance of
    the noise (MacKay, Neural Computation 4:448, 1992, in the Gauss-Newton form).

    **Arguments:**

    - `information`: the information of the fit. `size`: number of members, including the fit. `seed`: the random seed.
    - `train`, `validation`: as in `Ensemble.of`.

    **Raises:** `Unsure` if the data leave directions open without a prior, or are too few to estimate the noise.
    """
    moves = information.draw(size, np.random.default_rng(seed))
    index = [place.index for place in information.places]
    # A value near zero is no scale of its own: parameters are in units of the first values, or of an unbounded line.
    sizes = np.maximum(information.magnitudes, 1.0)
    shares = np.max(np.abs(moves[:, index]) / sizes, axis=1, initial=0.0)
    gain = float(np.clip(shares.max() / MAX_MEMBER_MOVE, CLOSER, CLOSEST))
    # Along a direction that the data do not determine, a member stays as near, since predictions hardly change there.
    nearer = np.minimum(1.0, MAX_MEMBER_MOVE * gain / np.maximum(shares, 1e-300))[:, None]
    members = models_at(information, [information.evidence.x + move / gain for move in nearer * moves])
    noise, freedom = information.noise_of_channels
    ensemble = Ensemble.of(members, train, validation, gain=gain, noise=noise, freedom=freedom)
    typical = ensemble.typical
    return ensemble if parameters.network_weights((typical.field, typical.start)) else replace(ensemble, horizon=None)


def at(information: Information, x: Float[np.ndarray, " parameter"]) -> NeuralODE:
    """Makes the model with the parameters of a flat vector."""
    return models_at(information, [x])[0]


def models_at(information: Information, points: Sequence[Float[np.ndarray, " parameter"]]) -> list[NeuralODE]:
    """Makes the models with the parameters of several flat vectors, which are put on the device together."""
    stage = information.evidence.stage
    setup = stage.programs.setup
    with scope_of(information.evidence.model):
        part = setup.parts[0]
        models = [eqx.combine(stage.params(x).model, part.frozen, part.static) for x in points]
        return setup.place.one(models)
