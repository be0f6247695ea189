"""Advice for a fit that is not good, from its data and its options."""

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..evaluation.past import explained_by_past
from ..model.fields.known import Known
from ..model.fields.linear import Linear
from ..objectives.penalty import Penalty
from ..training.callback import Record
from .options import Options
from .recipes import DIRECT

# Positive values whose largest is this many times their smallest should be fitted on a logarithmic scale.
DECADES = 100.0
# Share of a channel's residual variance that the rows before have to explain.
EXPLAINED = 0.2
# The width of a network to try where a wider one overfits.
NARROW = 16


def what_helps(
    options: Options,
    data: Dataset,
    predicted: Float[np.ndarray, "trajectory time state"],
    chosen: Collection[str] = (),
    *,
    overfits: bool,
) -> str:
    """What to try next: what is not in use yet, and what the training data suggest.

    **Arguments:**

    - `options`: those of the fit.
    - `data`, `predicted`: the training data, and the fit's predictions of them.
    - `chosen`: keys of the config that the fit chose itself, which its data judged.
    - `overfits`: whether the fit is much worse on data that it was not fitted to.
    """
    found = []
    wide = spanning_decades(options, data)
    if wide:
        found.append(f"data.log=[{','.join(wide)}] for positive values over decades")
    if maker(options.field) is Linear:
        found.append("field=mlp, since this field is linear")
    if overfits:
        found.append(against_overfitting(options, chosen))
    elif past_predicts(data, predicted):
        found.append(more_states(options))
    else:
        found.append("a longer record, or more of them, since past rows do not predict the residuals")
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
    hidden = 0 if options.hidden == "auto" else options.hidden
    count = hidden if isinstance(hidden, int) else len(hidden)
    if count == 0:
        return "hidden=1 start=encoder, since past rows predict the residuals: not all that matters is measured"
    return f"hidden={count + 1}, since past rows predict the residuals of a fit with {count}"


def what_helps_flat(options: Options, history: Sequence[Record]) -> str:
    """What to try where a fit is no better than a constant."""
    if len({record.stage for record in history}) == 1 and options.recipe == DIRECT:
        return "recipe=default, which begins without solves or with short ones"
    if options.training.window in (None, "auto"):
        return "shorter windows first (train.window=20), or hidden=1 start=encoder if not all that matters is measured"
    return f"shorter windows (train.window={max(options.training.window // 4, 5)}; they were {options.training.window})"
