"""The verdict on a fit, as a sentence with suggestions, and reports on predictions that end early."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..expressions.tree import Application, symbols
from ..expressions.writing import write
from ..model.fields.equations import Equations, as_mapping, evaluate_term
from ..model.make_model import keyword, trait_of
from ..runtime.validation import is_mapping
from .advice import LONGER_WINDOW, POOR, Untried, advise_flat, join_alternatives, more_training, past_predicts
from .case import FALLING, FLAT, GOOD_R2, LAST_CHUNK, MOST_OF_STAGE, WELL, Case, best_records, is_falling
from .metrics import Divergence, Score, coverage, prediction_errors, where_not_finite
from .new_data import ExpectedError
from .outliers import describe_outliers
from .residuals import ResidualChecks, check_residuals
from .simulation import Simulated, predictions_frame

if TYPE_CHECKING:
    import pandas

# Maximum number of trajectories named in a sentence, besides the first.
MOST_NAMED = 4
# Fraction of the training range by which values must leave it to be reported, and maximum number of channels reported.
BEYOND_RANGE, MOST_TOLD = 0.1, 3
# Fraction of its largest value below which an argument is near 0.
NEAR_EDGE = 0.1
# Movement below which a simulation stands still [standard deviations of the data].
STILL = 1e-6
# With fewer values than this, residuals of equations always look like noise.
FEW_OF_A_LAW = 30


def describe_divergence(data: Dataset, gone: Sequence[Divergence], *, triggers: bool = False) -> str:
    """Describes how many and which trajectories can't be simulated, from what time, and why.

    **Arguments:** `triggers`: whether the field has triggers, which can be the reason.
    """
    first = gone[0]
    steps = "where the solver takes all its steps"
    steps = f"{steps}, or triggers act without end" if triggers else steps
    reason = "where it runs away" if first.away else steps
    text = f"trajectory {first.name!r} can't be simulated beyond {data.time} = {first.time:g}, {reason}"
    if len(gone) == 1:
        return text
    others = ", ".join(repr(divergence.name) for divergence in gone[1 : MOST_NAMED + 1])
    more = ", ..." if len(gone) > MOST_NAMED + 1 else ""
    return f"{text} ({len(gone)} of {len(data.trajectories)} can't; the others: {others}{more})"


def describe_edge(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], end: Divergence, equations: object
) -> str | None:
    """Describes the root, logarithm or power of known equations that ends a simulation as its argument reaches 0.

    **Arguments:** `end`: where the simulation ends. `equations`: equations of the field; None without equations.
    """
    if not (is_mapping(equations) or isinstance(equations, str | Path)):
        return None
    row = data.trajectories.index(end.name)
    last = int(np.searchsorted(data.ts[row], end.time))
    columns = np.concatenate([predicted[row, : last + 1], data.us[row, : last + 1]], axis=1).T
    values = dict(zip((*data.states, *data.inputs), map(jnp.asarray, columns), strict=True))
    for state, operation, argument in Equations.of(as_mapping(equations)).edges():
        if not set(symbols(argument)) <= set(values):
            continue
        past = np.atleast_1d(np.asarray(evaluate_term(argument, values, float)))
        ahead = 2 * past[-1] - past[-2] if len(past) > 1 else past[-1]
        if min(past[-1], ahead) < NEAR_EDGE * np.abs(past).max():
            inside = write(argument)
            return (
                f"{write(operation)} in the equation of {state} has no value where {inside} is below 0, and it "
                f"has come to {past[-1]:.2g}: write {guard(operation, inside)}"
            )
    return None


def guard(operation: Application, inside: str) -> str:
    """Rewrites a root, logarithm or power so that its argument, the text `inside`, can't leave its domain."""
    match operation:
        case Application("^", (_, exponent)):
            return f"maximum({inside}, 0)**{write(exponent, least=4)}"
        case Application(name):
            return f"{name}(maximum({inside}, {'0' if name == 'sqrt' else '1e-6'}))"


Kind = Literal[
    "failed",
    "unstable",
    "coarse",
    "flat",
    "worsened",
    "unfinished",
    "beaten",
    "tied",
    "overfitted",
    "chaotic",
    "noise-limited",
    "poor",
    "misfit",
    "undetermined",
    "close",
    "good",
]
# Verdicts on models that fit their data, which require that longer simulations stay near the data.
FITS: tuple[Kind, ...] = ("noise-limited", "misfit", "close", "good")
# Distance from the optimum above which constants are not the best estimates from the data [standard errors].
OFF_OPTIMUM = 0.5
# Ratio of held-out to training error above which it is reported.
FAR_APART = 1.5
# Ratio of the spread of all data to that of a split above which a split is at rest, and errors name their unit.
AT_REST = 2.0
# Ratio of the ends of an interval above which it tells nothing of the error on new data.
TELLS_NOTHING = 100.0
# Maximum error ratio for which a simple model counts as equally good.
TIED = 1.1
KIND_WORDS = {
    "mean": "the mean of the training data",
    "persistence": "the last known value",
    "linear": "a linear ODE",
    "state-space": "a linear state-space model",
}


@dataclass(frozen=True)
class Diagnosis:
    """The `kind` of outcome, and a `sentence` with the reason and next steps."""

    kind: Kind
    sentence: str


@dataclass(frozen=True)
class Assessment:
    """The quality of a fit on some data; the source of all displays of it.

    - `case`: the data with the scored rows, their predictions, and the course of the fit.
    - `verdict`: the verdict, with suggestions.
    - `simulated`: curves and bands, if requested.
    """

    case: Case
    verdict: Diagnosis
    simulated: Simulated | None = None

    @property
    def splits(self) -> Mapping[str, Dataset]:
        """The data by role, with the scored rows."""
        return self.case.splits

    @property
    def weighted_splits(self) -> Mapping[str, Dataset]:
        """`splits`, with measurements weighted as in the loss of the fit."""
        return self.case.weighted_splits

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of the fit by role of the data, with errors weighted as in its loss."""
        return self.case.scores

    @property
    def baselines(self) -> Mapping[str, Mapping[str, Score]]:
        """The scores of simple models by role of the data."""
        return self.case.simple

    @cached_property
    def residuals(self) -> dict[str, ResidualChecks]:
        """Checks whether residuals are independent noise, weighted by their known deviations."""
        scaler = self.case.scaler
        assert scaler is not None
        return {
            name: check_residuals(scaler.mark_angles(part), self.case.predicted[name], scaler)
            for name, part in self.splits.items()
        }

    @property
    def coverage(self) -> dict[str, float | None]:
        """The share of measurements covered by bands, by role of the data; empty without bands."""
        bands = {} if self.simulated is None else self.simulated.bands
        return {name: coverage(self.splits[name], *edges) for name, edges in bands.items()}

    @property
    def expected(self) -> ExpectedError | None:
        """The interval for the error on new data, from left-out blocks or validation data; None if data are too few."""
        return self.case.expected

    def frame(self) -> "pandas.DataFrame":
        """Returns a `pandas.DataFrame` with a row for each time of a split.

        Its columns are trajectory, time, inputs, each state measured and predicted, with its band, and whether the row
        counts in the score (`scored`) or was used to read the start.
        """
        import pandas as pd

        bands = {} if self.simulated is None else self.simulated.bands
        frames: list[pd.DataFrame] = []
        for name, part in self.case.given.items():
            frame = predictions_frame(part, self.case.predicted[name], bands.get(name), name)
            frame["scored"] = self.splits[name].scored[part.valid & part.scored].astype(int)
            frames.append(frame)
        return pd.concat(frames)


def assess(case: Case, simulated: Simulated | None = None) -> Assessment:
    """Judges a fit and returns the verdict with its evidence."""
    verdict = diagnose(case)
    if case.status in ("interrupted", "pruned"):
        verdict = Diagnosis(verdict.kind, f"so far {verdict.sentence}")
    return Assessment(case, verdict, simulated)


def diagnose(case: Case) -> Diagnosis:
    """Judges a fit by the first rule that applies."""
    verdict = next(filter(None, (rule(case) for rule in RULES)))
    if verdict.kind in FITS:
        verdict = diagnose_runaway(case) or diagnose_at_end(case) or diagnose_off_optimum(case) or verdict
    if verdict.kind == "failed":
        return verdict
    raised = describe_rise(case) if verdict.kind in FITS else None
    more = (
        raised and f"{raised[0].upper()}{raised[1:]}.",
        None if verdict.kind == "unstable" else describe_expected(case),
        describe_outliers(case.splits["train"], case.outliers),
        outside_in_words(case.splits),
        limits_in_words(case),
    )
    return Diagnosis(verdict.kind, " ".join(filter(None, [verdict.sentence, *more])))


def describe_expected(case: Case) -> str | None:
    """Describes the expected error on new data, and test data with a larger error."""
    expected = case.expected
    if expected is None:
        return None
    if expected.high > TELLS_NOTHING * expected.low:
        return f"What error to expect on new data stays open: the errors on {expected.source} differ too much."
    test = case.nrmse.get("test", np.nan)
    beyond = f"; the test data, with {test:.2g}, differ from these" if test > expected.high else ""
    return f"On new data like these, expect {expected}{beyond}."


def diagnose_failed(case: Case) -> Diagnosis | None:
    if case.status != "failed":
        return None
    data, predicted = case.splits["train"], case.predicted["train"]
    gone = where_not_finite(data, predicted)
    if not gone:
        return Diagnosis("failed", "failed: no loss was finite; check the scale of the data and the solver.")
    edge = describe_edge(data, predicted, gone[0], keyword(case.options.field, "equations"))
    helps = edge or "check the scale of the data and the solver"
    return Diagnosis("failed", f"failed: no loss was finite; {describe_divergence(data, gone)}; {helps}.")


def diagnose_unstable(case: Case) -> Diagnosis | None:
    for name, data in case.splits.items():
        gone = where_not_finite(data, case.predicted[name])
        if gone:
            jumps = bool(getattr(case.options.field, "keywords", {}).get("triggers"))
            description = describe_divergence(data, gone, triggers=jumps)
            return Diagnosis("unstable", f"unstable: {name} {description}; {case.coarse or steady_in_words(case)}.")
    return None


def steady_in_words(case: Case) -> str:
    """Lists unused options that keep simulations from running away."""
    untried = Untried(case.options, case.chosen)
    prior = untried.prior() if case.penalised else None
    stiff = None if case.options.solver.method == "kvaerno5" else "solver=kvaerno5 if it is stiff"
    return f"try {join_alternatives([prior, untried.shorter_windows(LONGER_WINDOW), stiff])}"


def diagnose_coarse(case: Case) -> Diagnosis | None:
    return Diagnosis("coarse", f"coarse: {case.coarse}.") if case.coarse and not case.train.nrmse <= GOOD_R2 else None


def diagnose_constant(case: Case) -> Diagnosis | None:
    data = case.splits["train"]
    if prediction_errors(data).any():
        return None
    are = f"{data.states[0]} is" if len(data.states) == 1 else f"{' and '.join(data.states)} are"
    return Diagnosis("flat", f"flat: {are} constant in the training data, so there is no motion to learn.")


def diagnose_flat(case: Case) -> Diagnosis | None:
    if not case.train.r2 <= FLAT:
        return None
    if (trained_badly := diagnose_worsened(case) or diagnose_unfinished(case)) is not None:
        return trained_badly
    sentence = f"R² {case.train.r2:.2f} on the training data, no better than a constant"
    if stands_still(case.splits["train"], case.predicted["train"]):
        sentence += ", since the simulation stands still: where it starts, the equations have a steady state"
    one_stage = len({record.stage for record in case.history}) == 1
    advice = advise_flat(Untried(case.options, case.chosen, case.enough_hidden), one_stage=one_stage)
    return Diagnosis("flat", f"flat: {sentence}; try {advice}.")


def diagnose_worsened(case: Case) -> Diagnosis | None:
    """Diagnoses training that only raised the validation loss, so that its poor beginning is kept."""
    raised = describe_rise(case)
    if raised is None or not poor_of(case):
        return None
    untried = Untried(case.options, case.chosen)
    prior, lower = untried.prior() if case.penalised else None, lower_rate(case)
    shorter = untried.shorter_windows(LONGER_WINDOW)
    advice = case.search_advice or join_alternatives([*lower, prior, shorter, "more data"])
    return Diagnosis("worsened", f"worsened: {raised}; try {advice}.")


def describe_rise(case: Case) -> str | None:
    """Describes how training raised the validation loss from the start; None if it did not."""
    records = best_records(case.history)
    if len(records) < 2 or case.train.nrmse <= GOOD_R2:
        return None
    begin, end = records[0].validation_loss, records[-1].validation_loss
    if begin is None or end is None or any(record.judged_loss < records[0].judged_loss for record in records):
        return None
    if not end > (1 + FALLING) * begin:
        return None
    return f"training raised the validation loss from {begin:.2g} to {end:.2g}, so that its beginning is kept"


def lower_rate(case: Case) -> list[str]:
    """Lists alternatives with smaller steps, if the fit's optimizer has a learning rate."""
    rate = getattr(case.options.optimizer, "learning_rate", None)
    return [f"optimizer.learning_rate={float(rate) / 10:.1g}", "optimizer=lbfgs"] if isinstance(rate, float) else []


def diagnose_unfinished(case: Case) -> Diagnosis | None:
    """Diagnoses a fit that used all of its steps while still improving, so that it may need more."""
    if case.status != "completed" or case.train.nrmse <= GOOD_R2:
        return None
    lacks = bool(poor_of(case)) or case.misfit is not None
    if not (is_falling(case.history, LAST_CHUNK) or (lacks and is_falling(case.history, MOST_OF_STAGE))):
        return None
    advice = more_training(case.options)
    return Diagnosis("unfinished", f"unfinished: the loss was still falling at the last step; {advice}.")


def diagnose_beaten(case: Case) -> Diagnosis | None:
    """Diagnoses a simple model that is clearly better on held-out data, with a larger margin if errors are noise."""
    for name in case.held_out:
        little = 0 < case.errors[name] <= GOOD_R2 < case.scores[name].nrmse
        better = None if little else case.find_better(name)
        if better is not None:
            sentence = f"{against(better, case, name)} does better on the {name} data"
            return Diagnosis("beaten", f"beaten: {sentence}; try {case.advise(overfits=name in case.far)}.")
    return None


def diagnose_tied(case: Case) -> Diagnosis | None:
    """Diagnoses a fit that is no better than the mean or the last known value.

    Data at rest are excluded: there, even the true model is no better, and its error is small relative to earlier
    motion.
    """
    for name in case.held_out:
        tied = ties(case, name, ("mean", "persistence"))
        at_rest = case.errors[name] <= WELL < case.scores[name].nrmse
        if tied and case.errors[name] > 0 and not at_rest:
            sentence = f"tied: {tied} does as well on the {name} data; try {case.advise(overfits=name in case.far)}."
            return Diagnosis("tied", sentence)
    return None


def diagnose_overfitted(case: Case) -> Diagnosis | None:
    """Diagnoses overfitting, which only occurs with a network."""
    if not (case.far and case.penalised):
        return None
    name = max(case.far, key=lambda split: case.far[split])
    sentence = f"NRMSE {case.nrmse[name]:.2g} on {name} data against {case.nrmse['train']:.2g} on those of training"
    return Diagnosis("overfitted", f"overfitted: {sentence}; try {case.advise(overfits=True)}.")


def diagnose_chaotic(case: Case) -> Diagnosis | None:
    """Diagnoses a model that forecasts windows of a chaotic record well, and describes its long-term behaviour."""
    if case.chaos is None or poor_of(case):
        return None
    helps = "" if case.chaos.stays else "; a longer record would help"
    return Diagnosis("chaotic", f"chaotic: NRMSE {describe_lead(case)}, in windows; {case.chaos}{helps}.")


def diagnose_noise_limited(case: Case) -> Diagnosis | None:
    """Diagnoses residuals that are only noise, however large: no model does better."""
    if case.chaos is not None or case.train.nrmse <= GOOD_R2 or not case.is_all_noise or diagnose_beaten(case):
        return None
    text = "noise-limited: the residuals are about as large as the noise of the data; only more data would help"
    values = int(case.weighted_splits["train"].mask.sum(axis=(0, 1)).min())
    if case.is_law and case.train.r2 < POOR and values < FEW_OF_A_LAW:
        part = f"{1 - case.train.r2:.0%} of the variance in {values} values"
        text = (
            f"noise-limited: the residuals look like noise, but are {part}, too few to tell it from what equations lack"
        )
    return Diagnosis("noise-limited", f"{text}{linear_does_as_well(case)}.")


def diagnose_poor(case: Case) -> Diagnosis | None:
    poor = poor_of(case)
    if not poor:
        return None
    name = min(poor, key=lambda split: poor[split])
    overfits = "train" not in poor and not past_predicts(case.splits["train"], case.predicted["train"])
    where = "training" if name == "train" else name
    plain = np.isclose(poor[name], case.scores[name].r2)
    beside = "" if plain else " (of the variance of all data)"
    return Diagnosis(
        "poor", f"poor: R² {poor[name]:.2f} on the {where} data{beside}; try {case.advise(overfits=overfits)}."
    )


def diagnose_misfit(case: Case) -> Diagnosis | None:
    """Diagnoses residuals that are not noise: user-specified equations are then wrong, other models merely close."""
    if case.misfit is None:
        return None
    sentence = f"{describe_lead(case)}, but what is left is no noise, so the model misses something: {case.misfit}"
    is_given = case.is_law and not case.has_found_equations
    if is_given and not case.is_outlying:
        advice = Untried(case.options, case.chosen).other_equations()
    else:
        is_found = case.has_found_equations and not case.is_outlying
        is_enough = is_found or case.train.nrmse <= GOOD_R2
        advice = None if is_enough else case.advise(overfits=False)
    sentence += "." if advice is None else f"; try {advice}."
    return (
        Diagnosis("misfit", f"misfit: NRMSE {sentence}") if is_given else Diagnosis("close", f"close: NRMSE {sentence}")
    )


def diagnose_runaway(case: Case) -> Diagnosis | None:
    """Diagnoses a model that fits the record but runs away elsewhere."""
    escape = case.escape() if case.escape is not None and case.chaos is None else None
    if escape is None:
        return None
    sentence = f"simulated three times longer, from other starts and inputs within the data, {escape}"
    return Diagnosis("unstable", f"unstable: {sentence}; {steady_in_words(case)}.")


def diagnose_at_end(case: Case) -> Diagnosis | None:
    """Diagnoses equations that fit their data with constants at the ends of their ranges."""
    if not case.ends:
        return None
    sentence = f"{'; '.join(case.ends)}: the data do not determine them, or the equations do not need them"
    helps = "hold such a constant at a known value, give it bounds, or leave its term out"
    return Diagnosis("undetermined", f"undetermined: NRMSE {describe_lead(case)}, but {sentence}; {helps}.")


def diagnose_off_optimum(case: Case) -> Diagnosis | None:
    """Diagnoses equations whose constants are not at the optimum, so that their intervals are misplaced."""
    distance = 0.0 if case.distance is None else case.distance()
    if distance <= OFF_OPTIMUM:
        return None
    sentence = f"the constants are {distance:.2g} standard errors from their optimum"
    ways = ["precision=x64" if case.options.kind == "x32" else None, "restarts=8", "a smaller solver.rtol"]
    return Diagnosis("unfinished", f"unfinished: {sentence}; try {join_alternatives(ways)}.")


def diagnose_good(case: Case) -> Diagnosis:
    return Diagnosis("good", f"good: NRMSE {describe_lead(case)}{beside(case)}.")


RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    *(
        diagnose_failed,
        diagnose_unstable,
        diagnose_constant,
        diagnose_noise_limited,
        diagnose_coarse,
        diagnose_flat,
        diagnose_beaten,
        diagnose_tied,
        diagnose_overfitted,
    ),
    *(diagnose_worsened, diagnose_unfinished, diagnose_chaotic, diagnose_poor, diagnose_misfit, diagnose_good),
)


def poor_of(case: Case) -> dict[str, float]:
    """Returns the R² of poorly explained splits; NaN is ignored."""
    shares = {name: 1 - case.errors[name] ** 2 for name in case.splits}
    return {name: r2 for name, r2 in shares.items() if r2 < POOR}


def against(kind: str, case: Case, name: str) -> str:
    """Describes a simple model and its score on a split, compared to that of the fit."""
    fit_nrmse, simple_nrmse = case.nrmse[name], case.overall(case.simple[name][kind])
    return f"{KIND_WORDS.get(kind, kind)} (NRMSE {simple_nrmse:.2g} against {fit_nrmse:.2g})"


def ties(case: Case, name: str, kinds: Sequence[str]) -> str | None:
    """Describes the best of some simple models and its score on a split, if it is as good as the fit."""
    simple = {kind: score for kind, score in case.simple.get(name, {}).items() if kind in kinds}
    best = min(simple, key=lambda kind: simple[kind].nrmse, default=None)
    if best is None or not simple[best].nrmse <= TIED * case.scores[name].nrmse:
        return None
    return against(best, case, name)


def linear_does_as_well(case: Case) -> str:
    """Suggests a linear model if it is as good as a fit with a network."""
    name = (case.comparable or ["train"])[-1]
    tied = ties(case, name, ("linear", "state-space"))
    flexible = any(trait_of(case.options.field, kind, True) for kind in ("has_network", "has_linear_part"))
    if tied is None or not flexible or trait_of(case.options.field, "is_linear", False):
        return ""
    where = "training" if name == "train" else name
    return f"; {tied} does as well on {where} data, so field=linear, which is simpler, may be enough"


def describe_lead(case: Case) -> str:
    """Formats the scores of all splits, relative to the spread of all data; says so if that of a split is small."""
    errors = {name: error for name, error in case.nrmse.items() if not np.isnan(error)}
    names = ["training" if name == "train" else name for name in errors]
    figures = [f"{error:.2g} on {name}" for name, error in zip(names, errors.values(), strict=True)]
    listed = f"{', '.join(figures[:-1])} and {figures[-1]} data" if len(figures) > 1 else f"{figures[0]} data"
    is_at_rest = any(case.scores[name].nrmse > AT_REST * error for name, error in errors.items())
    return listed + ", relative to the spread of all data" * is_at_rest


def beside(case: Case) -> str:
    """Compares the held-out error with the training error and with the best simple model, in words."""
    nrmse = case.nrmse
    held = [name for name in case.comparable if not np.isnan(nrmse[name])]
    clause, last = "", (held or ["train"])[-1]
    worst = max(held, key=lambda name: nrmse[name], default="train")
    if nrmse[worst] > max(FAR_APART * nrmse["train"], GOOD_R2):
        times = nrmse[worst] / nrmse["train"]
        noise = ", but no more than noise" if case.errors[worst] == 0 else ""
        clause = f"; that on {worst} data is {times:.1f} times that on training data{noise}"
    if as_well := linear_does_as_well(case):
        return clause + as_well
    simple = {kind: case.overall(score) for kind, score in case.simple.get(last, {}).items()}
    name = min(simple, key=lambda kind: simple[kind], default=None) if held else None
    if name is not None:
        clause += f"; the best simple model, {KIND_WORDS.get(name, name)}, has {simple[name]:.2g} on {last} data"
    return clause


def limits_in_words(case: Case) -> str | None:
    """Names held-out data whose values are all limits; any model beyond these has no error there."""
    listed = " and ".join(name for name in case.held_out if name not in case.comparable)
    return f"All values of the {listed} data are limits, which tell little." if listed else None


def stands_still(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether a simulation does not move although the data do."""
    moves = np.ptp(np.where(data.valid[..., None], predicted, predicted[:, :1]), axis=1)
    return bool((moves <= STILL * prediction_errors(data)).all())


def outside_in_words(splits: Mapping[str, Dataset]) -> str | None:
    """Describes how the test data, or otherwise the validation data, leave the range of the training data."""
    train = splits["train"]
    trained = ranges_of(train, np.isfinite(train.ys))
    for name in reversed([name for name in splits if name != "train"]):
        data = splits[name]
        clauses: list[str] = []
        for channel, (low, high) in ranges_of(data, data.mask).items():
            lowest, highest = trained.get(channel, (low, high))
            below, above = lowest - low, high - highest
            if channel not in data.angles and max(below, above) > BEYOND_RANGE * (highest - lowest):
                reached = low if below > above else high
                clauses.append(f"{channel} reaches {reached:.3g} (trained on {lowest:.3g} to {highest:.3g})")
        if clauses:
            more = "" if len(clauses) <= MOST_TOLD else f", and {len(clauses) - MOST_TOLD} more"
            return f"The {name} data leave the range of the training data: {', '.join(clauses[:MOST_TOLD])}{more}."
    return None


def ranges_of(data: Dataset, known: Bool[np.ndarray, "trajectory time state"]) -> dict[str, tuple[float, float]]:
    """Returns the range of each channel: over `known` values for states, and over their rows for inputs."""
    rows = known.any(axis=2)
    values = {name: data.ys[..., index][known[..., index]] for index, name in enumerate(data.states)}
    values |= {name: data.us[..., index][rows] for index, name in enumerate(data.inputs)}
    return {name: (float(channel.min()), float(channel.max())) for name, channel in values.items() if channel.size}
