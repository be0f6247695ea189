"""States that equations have and no column measures: hidden ones, which begin empty if a dose comes first."""

import functools
import re
from collections.abc import Mapping, Sequence
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


def texts_by_state(field: object) -> dict[str, str]:
    """Returns the known equations of a field, or of its constructor, by state; none for other fields."""
    if isinstance(field, Known):
        return dict(field.equations.texts)
    given: Mapping[str, object] | str = {} if isinstance(field, eqx.Module) else keyword(field, "equations") or {}
    return {str(name): str(text) for name, text in as_mapping(given).items()}


def with_hidden_of_equations(options: Options, train: Dataset) -> tuple[Options, list[Choice]]:
    """Returns the options with hidden states, unless they name them: those of the equations without a column.

    A state that nothing else depends on is rather a misspelled name, which the field reports.
    """
    equations = texts_by_state(options.field)
    others = [str(keyword(options.field, "triggers") or ""), str(keyword(options.observation, "formulas") or "")]
    hidden = [
        name
        for name in equations
        if name not in train.states
        and occurs_in(name, [text for own, text in equations.items() if own != name] + others)
    ]
    if options.hidden != "auto" or not hidden:
        return options, []
    return replace(options, hidden=hidden), [Choice("hidden", tuple(hidden), "in the equations, and not measured")]


def occurs_in(name: str, texts: Sequence[str]) -> bool:
    """Whether a name occurs in formulas."""
    return any(name in re.findall(r"[^\W\d]\w*", text) for text in texts)


def with_empty_starts(options: Options, train: Dataset, facts: Facts) -> tuple[Options, list[Choice]]:
    """Returns the options with starts of 0 for hidden states with a dose in the first row of each trajectory.

    Only the sum of dose and start has an effect there, so a start that is fitted would leave the volume open.
    """
    hidden = () if isinstance(options.hidden, int | str) else options.hidden
    empty = [name for name in find_states_dosed_first(train) if name in hidden]
    if options.start != "auto" or not empty:
        return options, []
    start = functools.partial(usual_start(options, facts), absent=dict.fromkeys(empty, 0.0))
    why = "a dose follows in the first row, and only their sum has an effect; start=fitted fits it"
    choices = [Choice(f"start.absent.{name}", 0, why) for name in empty]
    return replace(options, start=start), choices


def describe_noisy_starts(model: NeuralODE) -> list[str]:
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


def find_states_dosed_first(data: Dataset) -> Sequence[str]:
    """Returns the states to which the first row of each trajectory adds."""
    if data.events is None:
        return []
    adds = (data.events.factor[:, 0] == 1) & (data.events.shift[:, 0] != 0)
    return [name for name, is_dosed in zip(data.events.states, np.all(adds, axis=0), strict=True) if is_dosed]
