"""Sparse equations as a field: found in the training data, and then fitted like other known equations."""

import functools
from dataclasses import replace
from typing import Any

from ..data.dataset import Dataset
from ..discover.search import FEWEST_ROWS, Vocabulary, search
from ..model.fields.known import Known, Sparse
from ..model.initial_state.trained import Fitted
from ..model.make_model import keywords, made_of
from ..options.options import Options
from .resolve import SHORT, Choice


def find_equations(options: Options, train: Dataset, validation: Dataset | None) -> tuple[Options, tuple[Choice, ...]]:
    """The options with the equations in the place of `Sparse`, and what was found; other options as they are.

    **Raises:** `ValueError` if states are hidden, or no equation leaves nothing but noise.
    """
    if not callable(options.field) or made_of(options.field) is not Sparse:
        return options, ()
    if options.hidden not in ("auto", 0, ()):
        raise ValueError("field=sparse needs measurements of all states; leave out hidden, or use another field.")
    given = dict(keywords(options.field))
    effort = given.pop("effort", "normal")
    found = search(train, Vocabulary(**given), effort=effort, seed=options.seed)
    if not found.fits:
        raise ValueError(f"field=sparse: {found.verdict} Other fields may, such as field=mlp.")
    best = found.ranked[0]
    field = functools.partial(Known, equations=best.equations, constants=best.constants)
    few = options.start == "auto" and int(train.mask.sum()) < SHORT
    start = fitted_start(validation) if few else options.start
    text = ", ".join(f"d{state}/dt = {rate}" for state, rate in best.shown.items())
    told = Choice("field", "sparse", f"{text}; {found.verdict}")
    return replace(options, field=field, start=start, hidden=0), (told,)


def has_enough_rows(train: Dataset) -> bool:
    """Whether equations can be looked for: of data without events, with enough measurements of each state."""
    return train.events is None and int(train.mask.sum(axis=1).min()) >= FEWEST_ROWS


def fitted_start(validation: Dataset | None) -> Any:
    """A fitted start: to all rows, unless those of new trajectories are to be predicted from a few."""
    others = validation is not None and bool((validation.scored & validation.valid)[:, 0].any())
    return Fitted if others else functools.partial(Fitted, given=None)
