"""The verdict on a fit, in a sentence that says what to try next, and where predictions end early."""

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
from ..model.make_model import keyword, says
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

# Trajectories besides the first that a sentence names.
MOST_NAMED = 4
# Values that leave the range of the training data by more than this share of it are told, of so many channels.
BEYOND_RANGE, MOST_TOLD = 0.1, 3
# An argument below this share of its largest value is near 0.
NEAR_EDGE = 0.1
# A simulation that moves by no more than this stands still [standard deviations of the data].
STILL = 1e-6
# Values of which residuals of equations look like noise, whatever the equations lack.
FEW_OF_A_LAW = 30


def describe_divergence(data: Dataset, gone: Sequence[Divergence], *, triggers: bool = False) -> str:
    """A sentence that says how many trajectories can't be simulated, which, from when on, and why.

    **Arguments:** `triggers`: whether the field has triggers, which may be why.
    """
    first = gone[0]
    steps = "where the solver takes all its steps"
    steps = f"{steps}, or triggers act without end" if triggers else steps
    reason = "where it runs away" if first.away else steps
    text = f"trajectory {first.name!r} can't be simulated beyond {data.time} = {first.time:g}, {reason}"
    if len(gone) == 1:
        return text
    others = ", ".join(repr(each.name) for each in gone[1 : MOST_NAMED + 1])
    more = ", ..." if len(gone) > MOST_NAMED + 1 else ""
    return f"{text} ({len(gone)} of {len(data.trajectories)} can't; the others: {others}{more})"


def describe_edge(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], end: Divergence, equations: object
) -> str | None:
    """Which root, logarithm or power of known equations ends a simulation, since its argument comes to 0.

    **Arguments:** `end`: where the simulation ends. `equations`: those of the field, None if it has none.
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
    """A root, logarithm or power whose argument, the text `inside`, can't fall below its domain."""
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
# Verdicts on models that follow their data, which hold only if simulations stay near the data for longer.
FITS: tuple[Kind, ...] = ("noise-limited", "misfit", "close", "good")
# Constants farther from their optimum are not those that the data tell [standard errors].
OFF_OPTIMUM = 0.5
# A held-out error that is larger than that of training by this factor is told.
FAR_APART = 1.5
# A simple model does as well if its error is larger by no more than this factor.
TIED = 1.1
KIND_WORDS = {
    "mean": "the mean of the training data",
    "persistence": "the last known value",
    "linear": "a linear ODE",
    "state-space": "a linear state-space model",
}


@dataclass(frozen=True)
class Diagnosis:
    """The `kind` of outcome, and a `sentence` with the reason and what to try next."""

    kind: Kind
    sentence: str


@dataclass(frozen=True)
class Assessment:
    """What a fit is worth on some data: all that is shown of it is read from here.

    - `case`: the data with the rows that count, predictions of them, and how the fit went.
    - `verdict`: a sentence that says what to try next.
    - `simulated`: curves and bands, if they were asked for.
    """

    case: Case
    verdict: Diagnosis
    simulated: Simulated | None = None

    @property
    def splits(self) -> Mapping[str, Dataset]:
        """The data by their roles, with the rows that count."""
        return self.case.splits

    @property
    def weighed(self) -> Mapping[str, Dataset]:
        """`splits`, whose measurements count as far as the loss of the fit counts them."""
        return self.case.weighed

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of the fit by roles of data, weighed as its loss weighs errors."""
        return self.case.scores

    @property
    def baselines(self) -> Mapping[str, Mapping[str, Score]]:
        """The scores of simple models by roles of data."""
        return self.case.simple

    @cached_property
    def residuals(self) -> dict[str, ResidualChecks]:
        """Whether the residuals are independent noise, weighed by their known deviations."""
        scaler = self.case.scaler
        assert scaler is not None
        return {
            name: check_residuals(scaler.marked(part), self.case.predicted[name], scaler)
            for name, part in self.splits.items()
        }

    @property
    def coverage(self) -> dict[str, float | None]:
        """The share of the measurements that bands cover, by roles of data; empty without bands."""
        bands = {} if self.simulated is None else self.simulated.bands
        return {name: coverage(self.splits[name], *edges) for name, edges in bands.items()}

    @property
    def expected(self) -> ExpectedError | None:
        """The interval for the error on new data, by blocks left out, or validation data; None of too little."""
        return self.case.expected

    def frame(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each time of a split: trajectory, time, inputs, each state measured and
        predicted, with its band, and whether the row counts in the score (`scored`), or the start was read from it."""
        import pandas as pd

        bands = {} if self.simulated is None else self.simulated.bands
        frames: list[pd.DataFrame] = []
        for name, part in self.case.given.items():
            frame = predictions_frame(part, self.case.predicted[name], bands.get(name), name)
            frame["scored"] = self.splits[name].scored[part.valid & part.scored].astype(int)
            frames.append(frame)
        return pd.concat(frames)


def assess(case: Case, simulated: Simulated | None = None) -> Assessment:
    """Judges a fit, and keeps what it was judged by."""
    verdict = diagnose(case)
    if case.status in ("interrupted", "pruned"):
        verdict = Diagnosis(verdict.kind, f"so far {verdict.sentence}")
    return Assessment(case, verdict, simulated)


def diagnose(case: Case) -> Diagnosis:
    """Judges a fit: the first rule that says something decides."""
    verdict = next(filter(None, (rule(case) for rule in RULES)))
    if verdict.kind in FITS:
        verdict = is_runaway(case) or is_at_end(case) or is_off_optimum(case) or verdict
    if verdict.kind == "failed":
        return verdict
    raised = describe_rise(case) if verdict.kind in FITS else None
    more = (
        raised and f"{raised[0].upper()}{raised[1:]}.",
        None if verdict.kind == "unstable" else describe_expected(case),
        describe_outliers(case.splits["train"], case.outliers),
        outside_in_words(case.splits),
    )
    return Diagnosis(verdict.kind, " ".join(filter(None, [verdict.sentence, *more])))


def describe_expected(case: Case) -> str | None:
    """A sentence on the error to expect on new data, and on test data whose error is larger."""
    expected = case.expected
    if expected is None:
        return None
    test = case.nrmse.get("test", np.nan)
    beyond = f"; the test data, with {test:.2g}, differ from these" if test > expected.high else ""
    return f"On new data like these, expect {expected}{beyond}."


def is_failed(case: Case) -> Diagnosis | None:
    if case.status != "failed":
        return None
    data, predicted = case.splits["train"], case.predicted["train"]
    gone = where_not_finite(data, predicted)
    if not gone:
        return Diagnosis("failed", "failed: no loss was finite; check the scale of the data and the solver.")
    edge = describe_edge(data, predicted, gone[0], keyword(case.options.field, "equations"))
    helps = edge or "check the scale of the data and the solver"
    return Diagnosis("failed", f"failed: no loss was finite; {describe_divergence(data, gone)}; {helps}.")


def is_unstable(case: Case) -> Diagnosis | None:
    for name, data in case.splits.items():
        gone = where_not_finite(data, case.predicted[name])
        if gone:
            jumps = bool(getattr(case.options.field, "keywords", {}).get("triggers"))
            said = describe_divergence(data, gone, triggers=jumps)
            return Diagnosis("unstable", f"unstable: {name} {said}; {case.coarse or steady_in_words(case)}.")
    return None


def steady_in_words(case: Case) -> str:
    """What keeps simulations from running away, of what the fit has not got."""
    untried = Untried(case.options, case.chosen)
    prior = untried.prior() if case.penalised else None
    stiff = None if case.options.solver.method == "kvaerno5" else "solver=kvaerno5 if it is stiff"
    return f"try {join_alternatives([prior, untried.shorter_windows(LONGER_WINDOW), stiff])}"


def is_coarse(case: Case) -> Diagnosis | None:
    return Diagnosis("coarse", f"coarse: {case.coarse}.") if case.coarse and not case.train.nrmse <= GOOD_R2 else None


def is_constant(case: Case) -> Diagnosis | None:
    data = case.splits["train"]
    if prediction_errors(data).any():
        return None
    are = f"{data.states[0]} is" if len(data.states) == 1 else f"{' and '.join(data.states)} are"
    return Diagnosis("flat", f"flat: {are} constant in the training data, so there is no motion to learn.")


def is_flat(case: Case) -> Diagnosis | None:
    if not case.train.r2 <= FLAT:
        return None
    if (trained_badly := is_worsened(case) or is_unfinished(case)) is not None:
        return trained_badly
    said = f"R² {case.train.r2:.2f} on the training data, no better than a constant"
    if stands_still(case.splits["train"], case.predicted["train"]):
        said += ", since the simulation stands still: where it starts, the equations have a steady state"
    one_stage = len({record.stage for record in case.history}) == 1
    advice = advise_flat(Untried(case.options, case.chosen, case.enough_hidden), one_stage=one_stage)
    return Diagnosis("flat", f"flat: {said}; try {advice}.")


def is_worsened(case: Case) -> Diagnosis | None:
    """Training that only raised the validation loss, so that its beginning, which is poor, is what is kept."""
    raised = describe_rise(case)
    if raised is None or not poor_of(case):
        return None
    untried = Untried(case.options, case.chosen)
    prior, lower = untried.prior() if case.penalised else None, lower_rate(case)
    shorter = untried.shorter_windows(LONGER_WINDOW)
    advice = join_alternatives([*lower, prior, shorter, "more data"])
    return Diagnosis("worsened", f"worsened: {raised}; try {advice}.")


def describe_rise(case: Case) -> str | None:
    """How training raised the validation loss from its beginning on, in words; None if it did not."""
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
    """What makes smaller steps than an optimizer with a learning rate, if the fit has one."""
    rate = getattr(case.options.optimizer, "learning_rate", None)
    return [f"optimizer.learning_rate={float(rate) / 10:.1g}", "optimizer=lbfgs"] if isinstance(rate, float) else []


def is_unfinished(case: Case) -> Diagnosis | None:
    """A fit that took all of its steps, the last of which were of use: they may be why it is not good."""
    if case.status != "completed" or case.train.nrmse <= GOOD_R2:
        return None
    lacks = bool(poor_of(case)) or case.misfit is not None
    if not (is_falling(case.history, LAST_CHUNK) or (lacks and is_falling(case.history, MOST_OF_STAGE))):
        return None
    advice = more_training(case.options)
    return Diagnosis("unfinished", f"unfinished: the loss was still falling at the last step; {advice}.")


def is_beaten(case: Case) -> Diagnosis | None:
    """A simple model that is clearly ahead on held-out data; where errors are noise, it must be so by more."""
    for name in case.held:
        little = 0 < case.errors[name] <= GOOD_R2 < case.scores[name].nrmse
        better = None if little else case.find_better(name)
        if better is not None:
            said = f"{against(better, case, name)} does better on the {name} data"
            return Diagnosis("beaten", f"beaten: {said}; try {case.what(overfits=name in case.far)}.")
    return None


def is_tied(case: Case) -> Diagnosis | None:
    """The mean, or the last known value, that does as well. At rest, no right model does better, and its error is small
    beside what moved before."""
    for name in case.held:
        tied = ties(case, name, ("mean", "persistence"))
        at_rest = case.errors[name] <= WELL < case.scores[name].nrmse
        if tied and case.errors[name] > 0 and not at_rest:
            said = f"tied: {tied} does as well on the {name} data; try {case.what(overfits=name in case.far)}."
            return Diagnosis("tied", said)
    return None


def is_overfitted(case: Case) -> Diagnosis | None:
    """Only a network can follow what is chance in its training data."""
    if not (case.far and case.penalised):
        return None
    name = max(case.far, key=lambda each: case.far[each])
    said = f"NRMSE {case.nrmse[name]:.2g} on {name} data against {case.nrmse['train']:.2g} on those of training"
    return Diagnosis("overfitted", f"overfitted: {said}; try {case.what(overfits=True)}.")


def is_chaotic(case: Case) -> Diagnosis | None:
    """A model that forecasts windows of a chaotic record well; what it does beyond them is said."""
    if case.chaos is None or poor_of(case):
        return None
    helps = "" if case.chaos.stays else "; a longer record would help"
    return Diagnosis("chaotic", f"chaotic: NRMSE {describe_lead(case)}, in windows; {case.chaos}{helps}.")


def is_noise_limited(case: Case) -> Diagnosis | None:
    """Residuals that are noise, whatever they leave of a variance: no model does better."""
    if case.chaos is not None or case.train.nrmse <= GOOD_R2 or not case.is_all_noise or is_beaten(case):
        return None
    said = "noise-limited: the residuals are about as large as the noise of the data; only more data would help"
    values = int(case.weighed["train"].mask.sum(axis=(0, 1)).min())
    if case.is_law and case.train.r2 < POOR and values < FEW_OF_A_LAW:
        left = f"{1 - case.train.r2:.0%} of the variance in {values} values"
        said = (
            f"noise-limited: the residuals look like noise, but are {left}, too few to tell it from what equations lack"
        )
    return Diagnosis("noise-limited", f"{said}{linear_does_as_well(case)}.")


def is_poor(case: Case) -> Diagnosis | None:
    poor = poor_of(case)
    if not poor:
        return None
    name = min(poor, key=lambda each: poor[each])
    overfits = "train" not in poor and not past_predicts(case.splits["train"], case.predicted["train"])
    where = "training" if name == "train" else name
    plain = np.isclose(poor[name], case.scores[name].r2)
    beside = "" if plain else " (of the variance of all data)"
    return Diagnosis(
        "poor", f"poor: R² {poor[name]:.2f} on the {where} data{beside}; try {case.what(overfits=overfits)}."
    )


def is_misfit(case: Case) -> Diagnosis | None:
    """Residuals that are no noise: equations that were given are wrong then, and other models are merely close."""
    if case.misfit is None:
        return None
    said = f"{describe_lead(case)}, but what is left is no noise, so the model misses something: {case.misfit}"
    is_given = case.is_law and not case.has_found_equations
    if is_given and not case.is_outlying:
        advice = Untried(case.options, case.chosen).other_equations()
    else:
        is_found = case.has_found_equations and not case.is_outlying
        is_enough = is_found or case.train.nrmse <= GOOD_R2
        advice = None if is_enough else case.what(overfits=False)
    said += "." if advice is None else f"; try {advice}."
    return Diagnosis("misfit", f"misfit: NRMSE {said}") if is_given else Diagnosis("close", f"close: NRMSE {said}")


def is_runaway(case: Case) -> Diagnosis | None:
    """A model that fits the record, and runs away elsewhere."""
    escape = case.escape() if case.escape is not None and case.chaos is None else None
    if escape is None:
        return None
    said = f"simulated three times longer, from other starts and inputs within the data, {escape}"
    return Diagnosis("unstable", f"unstable: {said}; {steady_in_words(case)}.")


def is_at_end(case: Case) -> Diagnosis | None:
    """Equations that follow their data with constants at the ends of their ranges."""
    if not case.ends:
        return None
    said = f"{'; '.join(case.ends)}: the data do not tell, or the equations do without"
    helps = "hold such a constant at a known value, give it bounds, or leave its term out"
    return Diagnosis("undetermined", f"undetermined: NRMSE {describe_lead(case)}, but {said}; {helps}.")


def is_off_optimum(case: Case) -> Diagnosis | None:
    """Equations whose constants are not those of the least misfit, so that their intervals lie beside them."""
    distance = 0.0 if case.distance is None else case.distance()
    if distance <= OFF_OPTIMUM:
        return None
    said = f"the constants are {distance:.2g} standard errors from their optimum"
    ways = ["precision=x64" if case.options.kind == "x32" else None, "restarts=8", "a smaller solver.rtol"]
    return Diagnosis("unfinished", f"unfinished: {said}; try {join_alternatives(ways)}.")


def is_good(case: Case) -> Diagnosis:
    return Diagnosis("good", f"good: NRMSE {describe_lead(case)}{beside(case)}.")


RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    *(is_failed, is_unstable, is_constant, is_noise_limited, is_coarse, is_flat, is_beaten, is_tied, is_overfitted),
    *(is_worsened, is_unfinished, is_chaotic, is_poor, is_misfit, is_good),
)


def poor_of(case: Case) -> dict[str, float]:
    """The R² of splits that are explained poorly; one that is not a number decides nothing."""
    shares = {name: 1 - case.errors[name] ** 2 for name in case.splits}
    return {name: r2 for name, r2 in shares.items() if r2 < POOR}


def against(kind: str, case: Case, name: str) -> str:
    """A simple model and its score on a split, beside that of the fit."""
    own, other = case.nrmse[name], case.overall(case.simple[name][kind])
    return f"{KIND_WORDS.get(kind, kind)} (NRMSE {other:.2g} against {own:.2g})"


def ties(case: Case, name: str, kinds: Sequence[str]) -> str | None:
    """The best of some simple models, if it does as well on a split as the fit, with its score, in words."""
    simple = {kind: score for kind, score in case.simple.get(name, {}).items() if kind in kinds}
    best = min(simple, key=lambda kind: simple[kind].nrmse, default=None)
    if best is None or not simple[best].nrmse <= TIED * case.scores[name].nrmse:
        return None
    return against(best, case, name)


def linear_does_as_well(case: Case) -> str:
    """Says so, of a fit that has a network."""
    name = (case.held or ["train"])[-1]
    tied = ties(case, name, ("linear", "state-space"))
    flexible = any(says(case.options.field, kind, True) for kind in ("has_network", "has_linear_part"))
    if tied is None or not flexible or says(case.options.field, "is_linear", False):
        return ""
    where = "training" if name == "train" else name
    return f"; {tied} does as well on {where} data, so field=linear, which is simpler, may be enough"


def describe_lead(case: Case) -> str:
    """The scores of all splits that have one, in the spread of all data."""
    known = {name: error for name, error in case.nrmse.items() if not np.isnan(error)}
    names = ["training" if name == "train" else name for name in known]
    figures = [f"{error:.2g} on {name}" for name, error in zip(names, known.values(), strict=True)]
    return f"{', '.join(figures[:-1])} and {figures[-1]} data" if len(figures) > 1 else f"{figures[0]} data"


def beside(case: Case) -> str:
    """How the error held out compares with that of training, and with that of the best simple model, in words."""
    own = case.nrmse
    held = [name for name in case.held if not np.isnan(own[name])]
    said, last = "", (held or ["train"])[-1]
    worst = max(held, key=lambda name: own[name], default="train")
    if own[worst] > max(FAR_APART * own["train"], GOOD_R2):
        times = own[worst] / own["train"]
        noise = ", but no more than noise" if case.errors[worst] == 0 else ""
        said = f"; that on {worst} data is {times:.1f} times that on training data{noise}"
    if as_well := linear_does_as_well(case):
        return said + as_well
    simple = {kind: case.overall(score) for kind, score in case.simple.get(last, {}).items()}
    name = min(simple, key=lambda kind: simple[kind], default=None) if held else None
    if name is not None:
        said += f"; the best simple model, {KIND_WORDS.get(name, name)}, has {simple[name]:.2g} on {last} data"
    return said


def stands_still(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether a simulation does not move although the data do."""
    moves = np.ptp(np.where(data.valid[..., None], predicted, predicted[:, :1]), axis=1)
    return bool((moves <= STILL * prediction_errors(data)).all())


def outside_in_words(splits: Mapping[str, Dataset]) -> str | None:
    """A sentence on the test data, or else the validation data, if they leave the range of the training data."""
    train = splits["train"]
    trained = ranges_of(train, np.isfinite(train.ys))
    for name in reversed([name for name in splits if name != "train"]):
        data = splits[name]
        found: list[str] = []
        for channel, (low, high) in ranges_of(data, data.mask).items():
            lowest, highest = trained.get(channel, (low, high))
            below, above = lowest - low, high - highest
            if channel not in data.angles and max(below, above) > BEYOND_RANGE * (highest - lowest):
                reached = low if below > above else high
                found.append(f"{channel} reaches {reached:.3g} (trained on {lowest:.3g} to {highest:.3g})")
        if found:
            more = "" if len(found) <= MOST_TOLD else f", and {len(found) - MOST_TOLD} more"
            return f"The {name} data leave the range of the training data: {', '.join(found[:MOST_TOLD])}{more}."
    return None


def ranges_of(data: Dataset, known: Bool[np.ndarray, "trajectory time state"]) -> dict[str, tuple[float, float]]:
    """The lowest and the highest value of each channel: of states where they are `known`, of inputs in their rows."""
    rows = known.any(axis=2)
    values = {name: data.ys[..., index][known[..., index]] for index, name in enumerate(data.states)}
    values |= {name: data.us[..., index][rows] for index, name in enumerate(data.inputs)}
    return {name: (float(each.min()), float(each.max())) for name, each in values.items() if each.size}
