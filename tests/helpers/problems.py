"""Small problems with a known solution, and fits to them."""

import dataclasses
import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import node_fit as nf
from node_fit.model.parameters import partition
from node_fit.objectives.objective import AbstractLeastSquares, AbstractObjective, Loss, Residuals
from node_fit.runtime.placement import carry, dtype_of, numbers_as_arrays
from node_fit.sysid.linear_model import (
    step_matrix,
)
from node_fit.training.step import Params, StageData, initial_state

SMALL = functools.partial(nf.MLP, width=8, depth=1)


def rotation(trajectories: int = 3, times: int = 12, rate: float = 1.0) -> nf.Dataset:
    """Points that rotate around the origin."""
    ts = np.linspace(0.0, 3.0, times)
    phases = np.arange(trajectories)[:, None]
    angle = rate * ts[None, :] + phases
    return nf.Dataset.from_arrays(ts, np.stack([np.cos(angle), np.sin(angle)], axis=-1), states=("x", "y"))


TRAINING = {field.name for field in dataclasses.fields(nf.Training)}


PENALTY = {field.name for field in dataclasses.fields(nf.Penalty)}


SCALING = {"log": "log", "bounds": "bounds", "scale": "affine"}


def grouped(**flat) -> dict:
    """Options of a fit from flat names, sorted into `Training`, `Penalty` and `Scaling`."""
    training = {name: flat.pop(name) for name in TRAINING & set(flat)}
    penalty = {name: flat.pop(name) for name in PENALTY & set(flat)}
    scaling = {SCALING[name]: flat.pop(name) for name in set(SCALING) & set(flat)}
    groups = {"training": nf.Training(**training)} if training else {}
    groups |= {"penalty": nf.Penalty(**{"ridge": "auto", **penalty})} if penalty else {}
    groups |= {"scaling": nf.Scaling(**scaling)} if scaling else {}
    return {**groups, **flat}


def fit_to(train: nf.Dataset, **flat) -> nf.Fit:
    """Calls `node_fit.fit` with flat options; ignores callbacks that are `None`."""
    callbacks = [each for each in flat.pop("callbacks", []) if each is not None]
    given, own = grouped(**flat), inspect.signature(nf.fit).parameters
    options = nf.Options(**{name: given.pop(name) for name in given.keys() - own.keys()})
    return nf.fit(train, **given, options=options, callbacks=callbacks)


class Quadratic(AbstractLeastSquares):
    """A cheap objective: the difference between the field and a rotation at the data."""

    penalty: nf.Penalty = eqx.field(default_factory=nf.Penalty)

    def why_not(self, model, data):
        return None

    def prepare(self, data, model):
        return nf.Batch.from_dataset(data, model.scaler)

    def residuals(self, model, auxiliary, target):
        points = target.batch.ys.reshape(-1, 2)
        rates = jax.vmap(lambda y: model.field(y[0] * 0, y, y[:0]))(points)
        turning = jnp.stack([-points[:, 1], points[:, 0]], axis=1)
        count = jnp.asarray(points.size, points.dtype)
        return Residuals(rates - turning, count, jnp.zeros((), jnp.int32))


def problem(optimizer, precision="x32", field=None, objective=None, steps=20, freeze=()):
    """The arguments of a chunk, as `fit` prepares them."""
    data = rotation()
    model = nf.make_model(data, field=field or SMALL, key=jax.random.key(0))
    dtype = dtype_of(precision)
    model = carry(model, dtype)
    stage = nf.Stage(objective or Quadratic(), optimizer, steps)
    parts = partition(model, freeze)
    numbers, stage_static = eqx.partition(numbers_as_arrays(stage), eqx.is_array_like)
    batch = stage.objective.prepare(data, model)
    fixed = carry(StageData(parts.frozen, numbers, batch), dtype)
    state = carry(initial_state(stage, Params(parts.params, None), stage.objective.first_grid(batch)), dtype)
    return parts, stage_static, fixed, state


A = np.array([[0.0, 0.5], [-0.6, -0.1]])


B = np.array([[0.0], [0.4]])


C = np.array([0.02, -0.01])


def record(rows: int = 400, seed: int = 0, held: bool = True, noise: float = 0.0) -> nf.Dataset:
    """A single record of the system's first state, with a random input that is held, or linear, between rows."""
    rng = np.random.default_rng(seed)
    us = rng.normal(size=(rows, 1)) if held else np.cumsum(rng.normal(size=(rows, 1)), axis=0) / 5
    step, z, ys = step_matrix(A, B, C, held=held), np.array([0.3, 0.0]), []
    for row in range(rows):
        ys.append(z[:1] + noise * rng.normal(size=1))
        ends = [us[row]] if held else [us[row], us[min(row + 1, rows - 1)]]
        z = step @ np.concatenate([z, *ends, [1]])
    return nf.Dataset.from_arrays(np.arange(rows, dtype=float), np.stack(ys), us, states=("y",), inputs=("u",))


class Marked(AbstractObjective):
    """An objective with one operation that no optimizer uses."""

    def why_not(self, model, data):
        return None

    def prepare(self, data, model):
        return nf.Batch.from_dataset(data, model.scaler)

    def loss(self, model, auxiliary, target):
        weights = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(model.field)])
        return Loss(jnp.sum(jax.lax.lgamma(1 + weights**2)), jnp.zeros((), jnp.int32))
