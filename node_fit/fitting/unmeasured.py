"""States that equations have and no column measures: hidden ones, which begin empty if a dose comes first."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import numpy as np

from ..data.dataset import Dataset
from ..data.facts import Facts
from ..model.fields.equations import as_mapping
from ..model.fields.known import Known
from ..model.initial_state.rule import Stated
from ..model.make_model import is_equations_alone, keyword
from ..model.neural_ode import NeuralODE
from ..options.options import Options
from .resolve import Choice, usual_start


def states_of(field: object) -> list[str]:
    """Returns the states of known equations, or of their constructor; none for other fields."""
    if isinstance(field, Known):
        return [name for name, _ in field.equations.texts]
    return (
        [] if isinstance(field, eqx.Module) else [str(name) for name in as_mapping(keyword(field, "equations") or {})]
    )


def with_hidden_of_equations(options: Options, train: Dataset) -> tuple[Options, list[Choice]]:
    """Returns the options with hidden states, unless they name them: those of the equations without a column."""
    hidden = [name for name in states_of(options.field) if name not in train.states]
    if options.hidden != "auto" or not hidden:
        return options, []
    return replace(options, hidden=hidden), [Choice("hidden", tuple(hidden), "in the equations, and not measured")]


def with_empty_starts(options: Options, train: Dataset, facts: Facts) -> tuple[Options, list[Choice]]:
    """Returns the options with starts of 0 for hidden states with a dose in the first row of each trajectory.

    Only the sum of dose and start has an effect there, so a start that is fitted would leave the volume open.
    """
    hidden = () if isinstance(options.hidden, int | str) else options.hidden
    empty = [name for name in dosed_at_first_rows(train) if name in hidden]
    if options.start != "auto" or not empty:
        return options, []
    start = functools.partial(usual_start(options, facts), absent=dict.fromkeys(empty, 0.0))
    why = "a dose follows in the first row, and only their sum has an effect; start=fitted fits it"
    choices = [Choice(f"start.absent.{name}", 0, why) for name in empty]
    return replace(options, start=start), choices


def noisy_starts(model: NeuralODE) -> list[str]:
    """Returns a warning about states of equations that begin at their first measurement beside stated starts."""
    start = model.start
    if not (isinstance(start, Stated) and is_equations_alone(model.field)):
        return []
    measured = start.system.states[: start.guess.measured]
    return [
        f"start.values has no {name}, which begins at its first measurement, as noisy as any other; if its start is "
        f"known, add it, such as {name}: 0."
        for name in measured
        if name not in start.states_with_expression
    ]


def dosed_at_first_rows(data: Dataset) -> Sequence[str]:
    """Returns the states to which the first row of each trajectory adds."""
    if data.events is None:
        return []
    adds = (data.events.factor[:, 0] == 1) & (data.events.shift[:, 0] != 0)
    return [name for name, is_dosed in zip(data.events.states, np.all(adds, axis=0), strict=True) if is_dosed]
