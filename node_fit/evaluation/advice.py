"""Advice for a fit that is not good, based on its data and options: features that it does not use and has not tried."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..model.initial_state.trained import Encoder
from ..model.make_model import keyword, maker_class, trait_of
from ..objectives.objective import Penalty
from ..optimizers.gradient import LBFGS
from ..options.options import Options
from ..options.recipes import DIRECT_RECIPE, Recipe
from .residuals import explain_by_past

# R² below which a fit is poor.
POOR = 0.9
# Ratio of largest to smallest positive value above which a logarithmic scale is advised.
DECADES = 100.0
# R² below which residuals mostly consist of the data themselves, as when a simulation has lost the phase.
LOST = 0.5
# Share of a channel's residual variance above which past rows count as predictive.
EXPLAINED = 0.2
MORE = "a longer record, or more of them"
# Width of a network to try if a wider one overfits, weight of a first prior, and rows of windows: if nothing is learnt,
# if simulations run away, and at least.
NARROW, FIRST_RIDGE, SHORT_WINDOW, LONGER_WINDOW, LEAST_WINDOW = 16, 0.1, 20, 50, 5


@dataclass(frozen=True)
class Untried:
    """Features that a fit does not use and has not tried, as pieces of advice that are None if not applicable.

    - `options`: options of the fit. `chosen`: config keys that it chose itself, or for which it tried other values.
    - `enough_hidden`: whether fits with more hidden states were tried without improvement.
    """

    options: Options
    chosen: Collection[str] = ()
    enough_hidden: bool = False

    @property
    def hidden(self) -> int:
        """The requested number of hidden states."""
        requested = self.options.hidden
        return 0 if requested == "auto" else requested if isinstance(requested, int) else len(requested)

    @property
    def window(self) -> int | None:
        """The requested window size [rows]."""
        requested = self.options.training.window
        return None if isinstance(requested, str) else requested

    @property
    def ridge(self) -> float:
        """The requested weight of the prior; 0 for none, or if the fit chooses it."""
        penalty = self.options.penalty
        requested = penalty.ridge if isinstance(penalty, Penalty) else "auto"
        return 0.0 if isinstance(requested, str) else float(requested)

    @property
    def is_law(self) -> bool:
        return trait_of(self.options.field, "has_equations", False)

    def more_hidden(self) -> str | None:
        """Advises one more hidden state, with a start read from rows."""
        if self.enough_hidden:
            return None
        encoder = callable(self.options.start) and maker_class(self.options.start) is Encoder
        return f"hidden={self.hidden + 1}{'' if encoder else ' start=encoder'}"

    def shorter_windows(self, rows: int) -> str | None:
        """Advises windows of `rows` rows, or shorter ones than at present."""
        if self.window is None:
            return None if "training.window" in self.chosen else f"shorter windows first (training.window={rows})"
        fewer = max(self.window // 4, LEAST_WINDOW)
        return f"shorter windows (training.window={fewer}; they were {self.window})" if fewer < self.window else None

    def prior(self) -> str | None:
        """Advises a prior, or a stronger one."""
        if "penalty.ridge" in self.chosen:
            return None
        if self.ridge == 0:
            return f"a prior (penalty.ridge={FIRST_RIDGE:g})"
        return f"a stronger prior (penalty.ridge={10 * self.ridge:.2g}; it was {self.ridge:.2g})"

    def smaller_network(self) -> str | None:
        """Advises a smaller network, unless it is small."""
        width = keyword(self.options.field, "width")
        narrow = not trait_of(self.options.field, "has_network", True) or (width is not None and width <= NARROW)
        return None if narrow or "field.width" in self.chosen else f"a smaller network (field.width={NARROW})"

    def other_equations(self) -> str | None:
        """Advises alternatives if known equations do not describe the data; None for other fields."""
        options, chosen = self.options, self.chosen
        if not self.is_law:
            return None
        tries: list[str] = []
        if options.restarts in (1, "auto") and "restarts" not in chosen:
            tries.append("several first values of the constants (restarts=8)")
        if not trait_of(options.start, "is_fitted", False) and "start" not in chosen:
            tries.append("a start that is fitted (start=fitted)")
        if self.hidden and keyword(options.start, "absent") is None:
            tries.append("the start of the hidden states, if you know it (start=first start.absent=...)")
        if not trait_of(options.field, "has_network", True):
            tries.append("a network for what they lack (field=hybrid)")
        elif not keyword(options.field, "rest"):
            tries.append("a remainder (field.rest=true)")
        wrong = "the start, the first values of the constants or the equations may be wrong"
        return f"{join_alternatives(tries)}, since {wrong}" if tries else f"other equations, since {wrong}"


def join_alternatives(tries: Collection[str | None]) -> str:
    """Joins the available alternatives as `a, b or c`."""
    named = [attempt for attempt in tries if attempt is not None]
    return f"{', '.join(named[:-1])}{' or ' if len(named) > 1 else ''}{named[-1]}" if named else MORE


def advise(
    options: Options,
    data: Dataset,
    predicted: Float[np.ndarray, "trajectory time state"],
    chosen: Collection[str] = (),
    *,
    overfits: bool,
    r2: float = 1.0,
    penalised: bool = True,
    misfit: str | None = None,
    outlying: bool = False,
    enough_hidden: bool = False,
    unfinished: bool = False,
) -> str:
    """Suggests next steps from the options not yet in use and the training data.

    **Arguments:**

    - `options`: options of the fit.
    - `data`, `predicted`: the training data, and the fit's predictions of them.
    - `chosen`: config keys that the fit chose itself, or for which it tried other values, judged on its data.
    - `overfits`: whether the fit is much worse on held-out data.
    - `r2`: R² on the training data.
    - `penalised`: whether it has a network, on which a prior would act.
    - `misfit`: description of why the residuals are more than noise.
    - `outlying`: whether some measurements lie far from all others, and have full weight.
    - `enough_hidden`: whether fits with more hidden states were tried without improvement.
    - `unfinished`: whether training used all of its steps while the loss was still falling.
    """
    untried, advice = Untried(options, chosen, enough_hidden), list[str]()
    if outlying:
        return "loss=student, or correct them, since some measurements lie far from all others"
    wide = spanning_decades(options, data)
    if wide:
        advice.append(f"data.log=[{','.join(wide)}] for positive values over decades")
    if trait_of(options.field, "is_linear", False) and "field" not in chosen:
        advice.append("field=mlp, since this field is linear")
    shares = explain_by_past(data, predicted)
    # Equations without a network overfit little; if they leave more than noise, they are wrong.
    wrong = untried.is_law and not penalised and misfit is not None
    if overfits and not wrong:
        advice.append(advise_against_overfitting(untried) if penalised else MORE)
    elif unfinished and penalised:
        # For long simulations of oscillations, more steps fit a few periods at best.
        is_lost = r2 < LOST and bool((shares > EXPLAINED).any())
        windows = untried.shorter_windows(SHORT_WINDOW) if is_lost else None
        advice.append(join_alternatives([windows, more_training(options)]))
    elif (shares > EXPLAINED).any():
        advice.append(more_states(untried, lost=r2 < LOST))
    elif wrong:
        advice.append(f"{untried.other_equations()}: {misfit}")
    elif not r2 >= POOR:
        advice.append(advise_flat(untried))
    else:
        advice.append(MORE)
        # This would contradict a warning that neighbours depend on each other.
        tells = misfit is None and not np.isnan(shares).all()
        advice[-1] += ", since past rows do not predict the residuals" if tells else ""
    return "; or ".join(advice)


def past_predicts(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether past rows predict a large part of the residuals."""
    return bool((explain_by_past(data, predicted) > EXPLAINED).any())


def spanning_decades(options: Options, data: Dataset) -> list[str]:
    """Returns the channels whose positive values span decades and that are fitted without transformation."""
    wide: list[str] = []
    for index, name in enumerate(data.states):
        values = data.ys[..., index][data.mask[..., index]]
        scaled = (*options.scaling.log, *options.scaling.bounds, *data.angles)
        if name not in scaled and values.size and values.min() > 0:
            wide += [name] if values.max() > DECADES * values.min() else []
    return wide


def more_training(options: Options) -> str:
    """Advises unused options that bring a fit closer to its optimum."""
    if not isinstance(options.recipe, Recipe | str):
        last = [*options.recipe][-1]
        return f"raise the steps of stage {last.name} (they were {last.steps})"
    steps = "" if options.training.steps is None else f" (they were {options.training.steps})"
    lbfgs = options.optimizer is None or isinstance(options.optimizer, LBFGS)
    is_elsewhere = not lbfgs or options.training.batch_size is not None
    return join_alternatives([f"raise training.steps{steps}", "optimizer=lbfgs" if is_elsewhere else None])


def advise_against_overfitting(untried: Untried) -> str:
    if "penalty.ridge" in untried.chosen:
        alternatives = join_alternatives(["more data", untried.smaller_network()])
        return f"{alternatives} (penalty.ridge was chosen by the data already)"
    return join_alternatives([untried.prior(), untried.smaller_network(), "more data"])


def more_states(untried: Untried, *, lost: bool = False) -> str:
    """Advises on residuals that past rows predict, as they always do for a `lost` simulation."""
    if (equations := untried.other_equations()) is not None:
        return f"{equations}: past rows predict the residuals"
    hidden = untried.more_hidden()
    if hidden is None:
        return f"{MORE}, or another input: past rows predict the residuals, and more hidden states were no better"
    if lost:
        return advise_flat(untried)
    if untried.hidden == 0:
        return f"{hidden}, since past rows predict the residuals: not all that matters is measured"
    return f"{hidden}, since past rows predict the residuals of a fit with {untried.hidden}"


def advise_flat(untried: Untried, *, one_stage: bool = False) -> str:
    """Advises on a fit that is no better than a constant.

    **Arguments:** `one_stage`: whether it was trained in a single stage.
    """
    if (equations := untried.other_equations()) is not None:
        return equations
    if untried.enough_hidden:
        return f"{MORE}, another input, or equations (field=known): hidden states were tried, and no better"
    if one_stage and untried.options.recipe == DIRECT_RECIPE and "training.window" not in untried.chosen:
        return "recipe=default, which begins without solves or with short ones"
    windows = untried.shorter_windows(SHORT_WINDOW)
    if windows is not None and untried.window is not None:
        return windows
    hidden = f"{untried.more_hidden()} if not all that matters is measured"
    if windows is not None:
        return f"{windows}, or {hidden}"
    return f"{hidden}, or equations (field=known)"
