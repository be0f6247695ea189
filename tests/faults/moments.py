"""Training states whose content follows from their step, and a process that saves them endlessly."""

import itertools
from multiprocessing.connection import Connection
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import node_fit as nf
from node_fit.model.neural_ode import NeuralODE
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.storage.checkpoint import Checkpoints, to_arrays
from node_fit.training.callback import RunState
from node_fit.training.step import Params, TrainState, initial_state


def model(width: int = 4, precision: str = "x32") -> NeuralODE:
    data = nf.Dataset.from_arrays([0.0, 1.0, 2.0], [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], states=("x", "y"))
    with scope(precision):
        field = nf.MLP(2, width=width, depth=1, key=jax.random.key(0))
        return carry(nf.make_model(data, field=field, key=jax.random.key(0)), dtype_of(precision))


def state_at(
    step: int, *, loss: float = 1.0, width: int = 4, nodes: int = 5, precision: str = "x32", optimizer=None
) -> TrainState:
    """The training state of a small model, with numbers that encode its step, and a grid of `nodes` nodes."""
    with scope(precision):
        params = Params(eqx.filter(model(width, precision).field, eqx.is_inexact_array), None)
        stage = nf.Stage(nf.TrajectoryMatching(), optimizer or nf.Adam(), 100)
        grid = np.linspace(0.0, 1.0, nodes)[None, :]
        state = carry(initial_state(stage, params, grid), dtype_of(precision))
        shifted = jax.tree.map(lambda p: p + step, state.params)
        where = lambda s: (s.step, s.params, s.chosen.loss)  # noqa: E731
        return carry(eqx.tree_at(where, state, (jnp.int32(step), shifted, jnp.asarray(loss))), dtype_of(precision))


def moment_at(step: int, stage: int = 0, **options) -> RunState:
    return RunState(stage, 0, (state_at(step, **options),))


def fill(directory: Path, *moments: RunState, keep: int = 3) -> None:
    checkpoints = Checkpoints(directory, keep)
    for moment in moments:
        checkpoints.save(moment)


def restore(directory: Path, which: str = "latest", precision: str = "x32", **options) -> RunState | None:
    """Restores the state that a resumed run gets."""
    with scope(precision):
        return Checkpoints(directory).restore(
            lambda _, nodes: (state_at(0, nodes=nodes, precision=precision, **options),),
            which,
        )


def content(moment: RunState) -> tuple[int, int, dict[str, tuple[str, bytes]]]:
    """The full content of a run state, for comparison bit by bit."""
    arrays = to_arrays(moment.members)
    return moment.stage, moment.offset, {name: (str(a.dtype), a.tobytes()) for name, a in arrays.items()}


def on_host(state: TrainState) -> TrainState:
    """The state as NumPy arrays, for a process that does not have time to start JAX."""
    return jax.tree.map(np.asarray, state)


def moved(state: TrainState, step: int) -> TrainState:
    """The state at another step, with changed parameters."""
    params = jax.tree.map(lambda p: p + np.float32(step), state.params)
    return eqx.tree_at(lambda s: (s.step, s.params), state, (np.asarray(step, np.int32), params))


def save_without_end(directory: Path, state: TrainState, first: int, told: Connection) -> None:
    """Saves one run state after another, and reports each commit."""
    checkpoints = Checkpoints(directory)
    for step in itertools.count(first):
        checkpoints.save(RunState(0, 0, (moved(state, step),)))
        told.send(step)
