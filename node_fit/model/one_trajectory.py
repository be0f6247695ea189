"""Extracts the model of one trajectory from a model with constants per trajectory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from ..data.dataset import Dataset
from ..data.groups import BY_TRAJECTORY
from ..data.scaling import Scaler
from ..data.tables.table import hint, list_names
from ..runtime.placement import scope_of
from .ensemble import Ensemble
from .fields.known import Constants
from .initial_state.trained import Encoder
from .neural_ode import NeuralODE
from .system import System


def of_trajectory(model: NeuralODE | Ensemble, name: str) -> NeuralODE | Ensemble:
    """Returns the model with the constants of one trajectory as ordinary constants, such as `k` for `k_A`.

    **Arguments:** `model`: with constants that are local by `trajectory`. `name`: of a fitted trajectory.

    **Raises:** `ValueError` if the trajectory does not exist, or no constant is local by `trajectory`.
    """
    one = model.typical
    names = one.scaler.trajectories
    if not names:
        raise ValueError("no constant of this model is local by trajectory, so it is that of every trajectory.")
    if name not in names:
        raise ValueError(f"trajectory {name!r} was not fitted; choose from {list_names(names)}.{hint(name, names)}")
    if isinstance(one.start, Encoder):
        raise ValueError("start=encoder reads the number of the trajectory, too; use start=first, fitted or stated.")
    place, number = one.inputs.index(BY_TRAJECTORY), 1.0 + names.index(name)

    def scale(scaler: Scaler) -> Scaler:
        bounds = scaler.input_bounds
        return replace(
            scaler,
            input_shift=jnp.delete(jnp.asarray(scaler.input_shift), place),
            input_scale=jnp.delete(jnp.asarray(scaler.input_scale), place),
            input_bounds=(*bounds[:place], *bounds[place + 1 :]) if bounds else (),
            trajectories=(),
        )

    def alone(node: object) -> object:
        if isinstance(node, Constants):
            return node.alone(BY_TRAJECTORY, number)
        if isinstance(node, System):
            inputs = tuple(input_name for input_name in node.inputs if input_name != BY_TRAJECTORY)
            return replace(node, inputs=inputs, scaler=scale(node.scaler))
        return scale(node) if isinstance(node, Scaler) else node

    with scope_of(one):
        return jax.tree.map(alone, model, is_leaf=lambda node: isinstance(node, Constants | System | Scaler))


def records_of(data: Dataset, name: str) -> Dataset:
    """Returns the records of one trajectory, without its number.

    **Raises:** `ValueError` if the data do not contain the trajectory.
    """
    if name not in data.trajectories:
        raise ValueError(f"the data have no trajectory {name!r}, only {list_names(data.trajectories)}.")
    part = data.select([data.trajectories.index(name)])
    if BY_TRAJECTORY not in part.inputs:
        return part
    place = part.inputs.index(BY_TRAJECTORY)
    inputs = tuple(input_name for input_name in part.inputs if input_name != BY_TRAJECTORY)
    return replace(part, us=np.delete(part.us, place, axis=2), inputs=inputs)
