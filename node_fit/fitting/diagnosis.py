"""The verdict on a fit, in a sentence that says what to try next."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.smoothing import noise_levels
from ..evaluation.failures import what_is_gone, where_not_finite
from ..evaluation.metrics import Score, score
from ..solver.held_steps import SLACK
from ..training.callback import Record, Status
from ..training.stopping import too_few_steps
from .advice import past_predicts, what_helps, what_helps_flat
from .options import Options

Kind = Literal[
    "failed", "unstable", "coarse", "flat", "unfinished", "beaten", "noise-limited", "overfitted", "poor", "good"
]
# A fit that explains less of the variance than this is as good as a constant, and with less than that it is poor.
FLAT, POOR = 0.1, 0.9
# A fit with a lower NRMSE is good in any case.
GOOD = 0.02
# The relative fall of the loss in the last chunk of a fit that more steps would improve.
FALLING = 0.05
# Errors up to so many times the noise are noise: of rows that were fitted, and of others.
NEAR_NOISE, NEAR_NOISE_HELD = 1.3, 2.0
OVERFITTED = 3.0
# A held-out error that is larger than that of training by this factor is told.
APART = 1.5
# A simple model is better only if it is ahead by more than this.
AHEAD = 0.99
WORDS = {
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


def diagnose(
    status: Status,
    history: Sequence[Record],
    splits: Mapping[str, Dataset],
    predicted: Mapping[str, Float[np.ndarray, "trajectory time state"]],
    simple: Mapping[str, Mapping[str, Score]] | None = None,
    options: Options | None = None,
    step_excess: float = 0.0,
    chosen: Collection[str] = (),
) -> Diagnosis:
    """Judges a fit.

    **Arguments:**

    - `status`, `history`, `options`: those of the fit.
    - `splits`: data by their names, `train` and perhaps `validation` and `test`, with the rows that count.
    - `predicted`: predictions for each split.
    - `simple`: scores of simple models for each split, by their names.
    - `step_excess`: of the fit. `chosen`: keys of the config that it chose itself.
    """
    options = options or Options()
    if status == "failed":
        return Diagnosis("failed", "failed: no loss was finite; check the scale of the data and the solver.")
    coarse = too_few_steps(options.solver.max_steps, step_excess) if step_excess > SLACK else None
    for name, data in splits.items():
        gone = where_not_finite(data, predicted[name])
        if gone:
            tries = "a prior (penalty.ridge=0.1), shorter windows first (train.window=50), or solver=kvaerno5"
            helps = coarse or f"try {tries} if it is stiff"
            return Diagnosis("unstable", f"unstable: {name} {what_is_gone(data, gone)}; {helps}.")
    scores = {name: score(data, predicted[name]) for name, data in splits.items()}
    train = scores["train"]
    held = {name: each for name, each in scores.items() if name != "train"}
    far = {name: each for name, each in held.items() if each.nrmse > max(OVERFITTED * train.nrmse, GOOD)}

    def what(*, overfits: bool) -> str:
        return what_helps(options, splits["train"], predicted["train"], chosen, overfits=overfits)

    if coarse and not train.nrmse <= GOOD:
        return Diagnosis("coarse", f"coarse: {coarse}.")
    if not train.r2 > FLAT:
        said = f"R² {train.r2:.2f} on the training data, no better than a constant"
        return Diagnosis("flat", f"flat: {said}; try {what_helps_flat(options, history)}.")
    if is_falling(history) and status == "completed" and train.nrmse > GOOD:
        return Diagnosis("unfinished", "unfinished: the loss was still falling at the last step; raise train.steps.")
    for name, own in held.items():
        better = ahead_of(own, (simple or {}).get(name, {}))
        if better:
            return Diagnosis(
                "beaten",
                f"beaten: {better} does better on the {name} data; try {what(overfits=name in far)}.",
            )
    if far:
        name, worst = max(far.items(), key=lambda item: item[1].nrmse)
        said = f"NRMSE {worst.nrmse:.2g} on {name} data against {train.nrmse:.2g} on those of training"
        return Diagnosis("overfitted", f"overfitted: {said}; try {what(overfits=True)}.")
    good = Diagnosis("good", f"good: NRMSE {in_words(scores)}{beside(scores, simple or {})}.")
    if train.nrmse <= GOOD:
        return good
    poor = {name: each for name, each in scores.items() if not each.r2 >= POOR}
    near = {name: NEAR_NOISE if name == "train" else NEAR_NOISE_HELD for name in splits}
    if all(is_noise(splits[name], predicted[name], options, near[name]) for name in splits) and not (
        poor.keys() - {"train"}
    ):
        return Diagnosis(
            "noise-limited",
            "noise-limited: the residuals are about as large as the noise of the data; only more data would help.",
        )
    if poor:
        name, worst = min(poor.items(), key=lambda item: item[1].r2)
        overfits = "train" not in poor and not past_predicts(splits["train"], predicted["train"])
        where = "training" if name == "train" else name
        return Diagnosis("poor", f"poor: R² {worst.r2:.2f} on the {where} data; try {what(overfits=overfits)}.")
    return good


def ahead_of(own: Score, simple: Mapping[str, Score]) -> str | None:
    """The simple model that is clearly better than a fit, with its score, in words."""
    name = min(simple, key=lambda each: simple[each].nrmse, default=None)
    if name is None or not simple[name].nrmse < AHEAD * own.nrmse:
        return None
    return f"{WORDS.get(name, name)} (NRMSE {simple[name].nrmse:.2g} against {own.nrmse:.2g})"


def in_words(scores: Mapping[str, Score]) -> str:
    """The scores of all splits."""
    names = ["training" if name == "train" else name for name in scores]
    figures = [f"{each.nrmse:.2g} on {name}" for name, each in zip(names, scores.values(), strict=True)]
    return f"{', '.join(figures[:-1])} and {figures[-1]} data" if len(figures) > 1 else f"{figures[0]} data"


def beside(scores: Mapping[str, Score], simple: Mapping[str, Mapping[str, Score]]) -> str:
    """How the error held out compares with that of training, and with that of the best simple model, in words."""
    held = [name for name in scores if name != "train"]
    if not held:
        return ""
    said, last = "", held[-1]
    worst = max(held, key=lambda name: scores[name].nrmse)
    if scores[worst].nrmse > max(APART * scores["train"].nrmse, GOOD):
        times = scores[worst].nrmse / scores["train"].nrmse
        said = f"; that on {worst} data is {times:.1f} times that on training data"
    name = min(simple.get(last, {}), key=lambda each: simple[last][each].nrmse, default=None)
    if name is not None:
        said += f"; the best simple model, {WORDS.get(name, name)}, has {simple[last][name].nrmse:.2g} on {last} data"
    return said


def is_falling(history: Sequence[Record]) -> bool:
    """Whether the best member's loss fell clearly in the last chunk."""
    if not history:
        return False
    # Losses of two stages, or of two members, do not compare.
    stage = [record for record in history if record.stage == history[-1].stage]
    best = min(stage, key=lambda record: record.judged_loss).member
    last = [record.train_loss for record in stage if record.member == best][-2:]
    return len(last) == 2 and last[1] < (1 - FALLING) * last[0]


def is_noise(
    data: Dataset,
    predicted: Float[np.ndarray, "trajectory time state"],
    options: Options,
    near: float = NEAR_NOISE,
) -> bool:
    """Whether every channel's error is at most `near` times that of the measurements, which is known or estimated."""
    noise = noise_levels(data.ts, np.where(data.mask, data.ys, np.nan))
    if data.sigma is not None:
        known = np.sqrt(np.nanmean(np.where(data.mask, data.sigma**2, np.nan), axis=(0, 1)))
        # The known deviation of a transformed state is one of its logarithm.
        transformed = (*options.scaling.log, *options.scaling.bounds)
        noise = np.where([name in transformed for name in data.states], noise, known)
    residual = np.where(data.mask, predicted - data.near(predicted), np.nan)
    error = np.sqrt(np.nanmean(residual**2, axis=(0, 1)))
    return bool((np.isfinite(noise) & (noise > 0) & (error <= near * noise)).all())
