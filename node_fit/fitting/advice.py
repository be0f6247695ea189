"""Advice for a fit that is not good, from its data and its options."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..evaluation.metrics import deviations
from ..evaluation.past import explained_by_past
from ..model.fields.hybrid import Hybrid
from ..model.fields.known import Known
from ..model.fields.linear import Linear
from ..model.starts.fitted import Fitted
from ..model.starts.stated import Stated
from ..objectives.penalty import Penalty
from ..training.callback import Record
from .options import Options
from .recipes import DIRECT

# Positive values whose largest is this many times their smallest should be fitted on a logarithmic scale.
DECADES = 100.0
# Share of a channel's residual variance that the rows before have to explain.
EXPLAINED = 0.2
MORE = "a longer record, or more of them"
# Values that leave the range of the training data by more than this share of it are told, of so many channels.
BEYOND, MOST_TOLD = 0.1, 3
# A simulation that moves by no more than this stands still [standard deviations of the data].
STILL = 1e-6
# The width of a network to try where a wider one overfits.
NARROW = 16


def what_helps(
    options: Options,
    data: Dataset,
    predicted: Float[np.ndarray, "trajectory time state"],
    chosen: Collection[str] = (),
    *,
    overfits: bool,
    explained: bool = True,
    penalised: bool = True,
) -> str:
    """What to try next: what is not in use yet, and what the training data suggest.

    **Arguments:**

    - `options`: those of the fit.
    - `data`, `predicted`: the training data, and the fit's predictions of them.
    - `chosen`: keys of the config that the fit chose itself, which its data judged.
    - `overfits`: whether the fit is much worse on data that it was not fitted to.
    - `explained`: whether it explains the training data themselves.
    - `penalised`: whether it has a network, on which a prior would act.
    """
    found = []
    wide = spanning_decades(options, data)
    if wide:
        found.append(f"data.log=[{','.join(wide)}] for positive values over decades")
    if maker(options.field) is Linear:
        found.append("field=mlp, since this field is linear")
    shares = explained_by_past(data, predicted)
    if overfits:
        found.append(against_overfitting(options, chosen) if penalised else MORE)
    elif (shares > EXPLAINED).any():
        found.append(more_states(options))
    elif not explained:
        found.append(what_helps_flat(options, ()))
    else:
        found.append(MORE)
        found[-1] += "" if np.isnan(shares).all() else ", since past rows do not predict the residuals"
    return "; or ".join(found)


def past_predicts(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether the rows before say much about the residuals."""
    return bool((explained_by_past(data, predicted) > EXPLAINED).any())


def maker(field: Any) -> Any:
    """The class or function that makes a field, without arguments that are given beforehand."""
    return maker(field.func) if isinstance(field, functools.partial) else field


def smaller_network(options: Options) -> list[str]:
    """The advice to take fewer weights, unless they are few."""
    field = options.field
    given = field.keywords.get("width") if isinstance(field, functools.partial) else None
    narrow = maker(field) in (Linear, Known) or (given is not None and given <= NARROW)
    return [] if narrow else [f"a smaller network (field.width={NARROW})"]


def spanning_decades(options: Options, data: Dataset) -> list[str]:
    """Channels whose positive values span decades, and that are not fitted on a logarithmic scale."""
    found = []
    for index, name in enumerate(data.states):
        values = data.ys[..., index][data.mask[..., index]]
        if name not in (*options.scaling.log, *data.angles) and values.size and values.min() > 0:
            found += [name] if values.max() > DECADES * values.min() else []
    return found


def against_overfitting(options: Options, chosen: Collection[str]) -> str:
    penalty, network = options.penalty, smaller_network(options)
    if "penalty.ridge" in chosen:
        return f"{' or '.join(['more data', *network])} (penalty.ridge was chosen by the data already)"
    ridge = penalty.ridge if isinstance(penalty, Penalty) else "auto"
    if isinstance(ridge, str) or ridge == 0:
        prior = "a prior (penalty.ridge=0.1)"
    else:
        prior = f"a stronger prior (penalty.ridge={10 * ridge:.2g}; it was {ridge:.2g})"
    return f"{', '.join([prior, *network])} or more data"


def more_states(options: Options) -> str:
    """The advice where past rows predict the residuals."""
    if (equations := other_equations(options)) is not None:
        return f"{equations}: past rows predict the residuals"
    hidden = 0 if options.hidden == "auto" else options.hidden
    count = hidden if isinstance(hidden, int) else len(hidden)
    if count == 0:
        return "hidden=1 start=encoder, since past rows predict the residuals: not all that matters is measured"
    return f"hidden={count + 1}, since past rows predict the residuals of a fit with {count}"


def what_helps_flat(options: Options, history: Sequence[Record]) -> str:
    """What to try where a fit is no better than a constant."""
    if (equations := other_equations(options)) is not None:
        return equations
    if len({record.stage for record in history}) == 1 and options.recipe == DIRECT:
        return "recipe=default, which begins without solves or with short ones"
    if options.training.window in (None, "auto"):
        return "shorter windows first (train.window=20), or hidden=1 start=encoder if not all that matters is measured"
    return f"shorter windows (train.window={max(options.training.window // 4, 5)}; they were {options.training.window})"


def other_equations(options: Options) -> str | None:
    """What to try where known equations do not describe the data; None of other fields."""
    kind = maker(options.field)
    if kind not in (Known, Hybrid):
        return None
    tries = ["several first values of the constants (starts=8)"] if options.starts in (1, "auto") else []
    if maker(options.start) not in (Fitted, Stated):
        tries.append("a start that is fitted (start=fitted)")
    if options.hidden not in (0, "auto", ()):
        tries.append("the start of the hidden states, if you know it (start=first start.absent=...)")
    tries.append("a network for what they lack (field=hybrid)" if kind is Known else "a remainder (field.rest=true)")
    wrong = "the start, the first values of the constants or the equations may be wrong"
    return f"{', '.join(tries[:-1])}{' or ' if tries[:-1] else ''}{tries[-1]}, since {wrong}"


def stands_still(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether a simulation does not move although the data do."""
    moves = np.ptp(np.where(data.valid[..., None], predicted, predicted[:, :1]), axis=1)
    return bool((moves <= STILL * deviations(data)).all())


def outside_in_words(splits: Mapping[str, Dataset]) -> str | None:
    """A sentence on the test data, or else the validation data, if they leave the range of the training data."""
    train = splits["train"]
    trained = ranges_of(train, np.isfinite(train.ys))
    for name in reversed([name for name in splits if name != "train"]):
        data, found = splits[name], []
        for channel, (low, high) in ranges_of(data, data.mask).items():
            lowest, highest = trained.get(channel, (low, high))
            below, above = lowest - low, high - highest
            if channel not in data.angles and max(below, above) > BEYOND * (highest - lowest):
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
