"""Continuing from an earlier model, in memory."""

from dataclasses import fields, replace
from typing import Any

from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE
from ..objectives.penalty import Penalty
from .options import Options

# Options that the earlier model determines.
OF_THE_MODEL = ("field", "hidden", "start", "observation", "scaling", "evaluation")


def checked_model(model: Any) -> NeuralODE:
    """The model to continue from.

    **Raises:** `ValueError` if it is not a single model.
    """
    if not isinstance(model, NeuralODE):
        raise ValueError(
            "model must be a NeuralODE to continue from, such as fit.model or node_fit.load(path), got a "
            f"{type(model).__name__}; of an ensemble take one of its members."
        )
    return model


def continued(model: NeuralODE, train: Dataset, options: Options) -> tuple[NeuralODE, Options]:
    """The earlier model as the initial model of a fit to `train`, with its own scaling, and the options of that fit.

    Starts that are fitted to each trajectory begin at the first measurements again. A ridge of `auto` is 0.

    **Raises:** `ValueError` if options ask for other parts, or the channels differ.
    """
    defaults = {each.name: each.default for each in fields(Options)}
    other = [name for name in OF_THE_MODEL if getattr(options, name) != defaults[name]]
    if other:
        raise ValueError(f"{other[0]} is part of the earlier model, so it can't be given with model=; leave it out.")
    model.check_channels(train)
    start = model.start.adapted(model.batch(train))
    assert isinstance(options.penalty, Penalty)
    return replace(model, start=start), options.with_ridge(0.0) if options.penalty.ridge == "auto" else options
