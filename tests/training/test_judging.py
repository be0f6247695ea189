"""How iterates are judged: without a validation loss, on minibatches, at the last step, and after a restart."""

import dataclasses
import functools
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.callbacks import alone, assert_equal, leaves
from helpers.problems import SMALL, Quadratic, fit_to, problem, rotation

import node_fit as nf
from node_fit.fitting.selection import select_member
from node_fit.objectives.objective import Loss
from node_fit.runtime.placement import carry
from node_fit.training import programs
from node_fit.training.callback import RunState
from node_fit.training.decisions import Outcome, judge_chunk
from node_fit.training.step import restart

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DESCENT = nf.Optax(optax.sgd(0.05))


def loss_on(data, model, objective=None) -> float:
    """The objective of a model on all data."""
    objective = objective or Quadratic()
    batch = carry(objective.prepare(data, model), np.float32)
    return float(jax.jit(lambda m: objective.loss(m, None, alone(batch)).value)(model))


def nowhere(static, params, own, shared, batch):
    """A validation loss that is never finite."""
    return jnp.full((), jnp.inf, jax.tree.leaves(params)[0].dtype)


def initial(seed: int = 0):
    return SMALL(2, 0, key=jax.random.split(jax.random.key(seed))[0])


def after_chunk(loss: float):
    """The states before and after a chunk whose lowest loss was this, on the host."""
    state = jax.tree.map(np.asarray, problem(nf.Adam())[3])
    chosen = dataclasses.replace(state.chosen, loss=np.float32(loss), gradient_norm=np.float32(1.0))
    return state, dataclasses.replace(state, chosen=chosen)


def test_without_a_finite_validation_loss_the_training_loss_decides(monkeypatch, caplog):
    monkeypatch.setattr(programs, "validation_loss", nowhere)
    options = {"field": SMALL, "chunk_steps": 5, "patience": 2}
    with caplog.at_level(logging.WARNING):
        fit = fit_to(rotation(), validation=rotation(2), recipe=[nf.Stage(Quadratic(), DESCENT, 30)], **options)
    lowest = min(record.train_loss for record in fit.history)
    assert lowest < 0.9 * fit.history[0].train_loss
    assert (fit.status, fit.steps) == ("completed", 30)
    assert loss_on(rotation(), fit.model) == pytest.approx(lowest, rel=1e-3)
    assert caplog.text.count("no validation loss was finite") == 1


def test_the_first_finite_validation_loss_counts_from_then_on():
    """It may be above the training losses that decided before."""
    before, after = after_chunk(1.0)
    unsolved = judge_chunk(before, after, np.inf)
    assert unsolved.stale == 0 and np.isinf(unsolved.best.loss)
    assert unsolved.best.is_usable(3)
    worse = judge_chunk(unsolved, after_chunk(2.0)[1], np.inf)
    assert worse.best is unsolved.best or worse.best.gradient_norm == 1.0
    found = judge_chunk(unsolved, after_chunk(0.9)[1], 5.0)
    assert found.best.loss == 5.0 and found.stale == 0
    again = judge_chunk(found, after_chunk(0.1)[1], np.inf)
    assert again.best.loss == 5.0 and again.stale == 1


def test_patience_without_a_finite_validation_loss_says_so(monkeypatch):
    monkeypatch.setattr(programs, "validation_loss", nowhere)
    still = [nf.Stage(Quadratic(), nf.Optax(optax.sgd(1e-9)), 100)]
    fit = fit_to(rotation(), validation=rotation(2), field=SMALL, recipe=still, chunk_steps=5, patience=2)
    assert fit.status == "stopped" and fit.steps < 30
    assert "no validation loss was finite" in fit.reason


def test_a_member_that_validates_ranks_before_one_that_never_did():
    before, after = after_chunk(1e-9)
    unsolved = judge_chunk(before, after, np.inf)
    solved = judge_chunk(before, after_chunk(0.5)[1], 0.6)
    run = RunState(0, 0, (unsolved, solved))
    assert select_member(run, range(2), (None, None), validated=True) == 1
    # A member that has failed is the last, however well it validates.
    assert select_member(run, range(2), (None, Outcome("failed", "it ran away")), validated=True) == 0
    assert select_member(run, range(2), (Outcome("failed", "both"),) * 2, validated=True) == 1


def uneven(trajectories: int = 8) -> nf.Dataset:
    """Rotations of which some have far less noise than others."""
    data = rotation(trajectories)
    size = np.geomspace(1e-3, 1.0, trajectories)[:, None, None]
    return dataclasses.replace(data, ys=data.ys * size)


def test_on_minibatches_the_best_is_judged_on_the_same_data(precision):
    """Without validation data; the luckiest minibatch has a hundredth of the loss of all data."""
    recipe = [nf.Stage(Quadratic(), nf.Optax(optax.sgd(0.3)), 40, batch_size=1)]
    fit = fit_to(uneven(), field=SMALL, recipe=recipe, chunk_steps=2, precision=precision)
    lowest = min(record.train_loss for record in fit.history)
    with jax.enable_x64(precision == "x64"):
        objective = Quadratic()
        batch = carry(objective.prepare(uneven(), fit.model), np.dtype("f8" if precision == "x64" else "f4"))
        value = float(objective.loss(fit.model, None, alone(batch)).value)
    assert value == pytest.approx(lowest, rel=1e-4)


@pytest.mark.parametrize("members", [1, 2])
def test_a_prior_weighs_as_much_on_minibatches(members):
    """Of eight equal trajectories one says of the data what all say; the prior must not count eight times."""
    data = rotation(1)
    data = nf.Dataset.from_arrays(np.tile(data.ts, (8, 1)), np.tile(data.ys, (8, 1, 1)), states=("x", "y"))
    fields = []
    for size in (None, 1, 4):
        stage = nf.Stage(Quadratic(nf.Penalty(ridge=5.0)), DESCENT, 20, batch_size=size)
        model = fit_to(data, field=SMALL, recipe=[stage], chunk_steps=10, ensemble=members).model
        fields.append(leaves(model if members == 1 else model.members))
    for other in fields[1:]:
        for mine, theirs in zip(fields[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [DESCENT, nf.LevenbergMarquardt()], ids=["descent", "lm"])
@pytest.mark.parametrize("steps", [1, 5])
def test_the_last_step_counts(optimizer, steps):
    """Of a loss that falls in every step, the parameters after the last one are the best."""
    options = {"field": SMALL, "chunk_steps": 5}
    fit = fit_to(rotation(), recipe=[nf.Stage(Quadratic(), optimizer, steps)], **options)
    more = fit_to(rotation(), recipe=[nf.Stage(Quadratic(), optimizer, steps + 1)], **options)
    assert (fit.status, fit.steps) == ("completed", steps)
    assert any((a != b).any() for a, b in zip(leaves(fit.model.field), leaves(initial()), strict=True))
    assert loss_on(rotation(), fit.model) == pytest.approx(fit.history[-1].train_loss, rel=1e-4)
    assert loss_on(rotation(), more.model) < fit.history[-1].train_loss < loss_on(rotation(), start_of(fit))


def start_of(fit):
    return dataclasses.replace(fit.model, field=carry(initial(), np.float32))


@pytest.mark.usefixtures("without_cache")
def test_the_last_step_of_minibatches_counts():
    stage = nf.Stage(Quadratic(), DESCENT, 1, batch_size=2)
    fit = fit_to(rotation(), field=SMALL, recipe=[stage], chunk_steps=1)
    assert loss_on(rotation(), fit.model) < loss_on(rotation(), start_of(fit))
    assert fit.compiles == 1


def test_a_last_step_that_leads_nowhere_does_not_count():
    fit = fit_to(rotation(), field=SMALL, recipe=[nf.Stage(Quadratic(), nf.Optax(optax.sgd(1e6)), 1)])
    assert_equal(fit.model.field, initial())
    assert fit.status == "completed"


def test_members_take_their_last_step_each():
    options = {"field": SMALL, "chunk_steps": 5, "recipe": [nf.Stage(Quadratic(), DESCENT, 5)]}
    together = fit_to(rotation(), ensemble=nf.Members(2), **options)
    for seed, model in enumerate(together.model.members):
        single = fit_to(rotation(), seed=seed, **options).model
        assert loss_on(rotation(), model) == pytest.approx(loss_on(rotation(), single), rel=1e-4)


def test_levenberg_marquardt_ends_in_words_of_its_own():
    fit = fit_to(rotation(), field=nf.Linear, recipe=[nf.Stage(Quadratic(), nf.LevenbergMarquardt(), 200)])
    assert fit.status == "converged"
    assert "sum of squares" in fit.reason and "line search" not in fit.reason


SCHEDULED = {
    "adam": nf.Adam(0.1),
    "optax": nf.Optax(optax.adam(optax.cosine_decay_schedule(0.1, 40))),
    "injected": nf.Optax(optax.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(0.1, 40))),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_restart_goes_on_in_the_schedule(name):
    """What it has learnt of the loss is forgotten; how far the learning rate has come is not."""
    optimizer, params = SCHEDULED[name], {"x": jnp.ones(3)}
    loss = lambda p: Loss((p["x"] ** 2).sum(), jnp.zeros((), jnp.int32))  # noqa: E731
    state = optimizer.init(params, 40)
    moved, sizes = params, []
    for index in range(31):
        if index == 30:
            state, moved = optimizer.restart(params, state, 40), params
        step = optimizer.step(loss, moved, state, 40)
        sizes.append(float(jnp.abs(step.params["x"] - moved["x"]).max()))
        moved, state = step.params, step.state
    decayed = 0.1 * (1 + np.cos(np.pi * 30 / 40)) / 2
    # The first step of Adam is as long as the learning rate.
    assert sizes[0] == pytest.approx(0.1, rel=1e-3)
    assert sizes[-1] == pytest.approx(decayed, rel=1e-3)


def test_the_loop_restarts_in_the_schedule():
    state = problem(nf.Adam(0.1))[3]
    stage = nf.Stage(Quadratic(), nf.Adam(0.1), 20)
    count = state.opt_state[-1]._replace(count=jnp.int32(15))
    state = dataclasses.replace(state, opt_state=(*state.opt_state[:-1], count))
    again = restart(stage, state, state.best)
    assert int(again.opt_state[-1].count) == 15


@pytest.mark.long
def test_few_validation_data_do_not_favour_a_model_that_misses_training_data():
    """The derivative stage's model has the lowest validation loss here, and an NRMSE of 0.17 on the training data."""
    data = nf.read_table(ROOT / "data" / "spiral.csv", time="t", states=["x", "y"], trajectory="trajectory")
    train, validation, _ = nf.Split(validation=0.25, test=0.0)(data)
    field = functools.partial(nf.MLP, width=32)
    fit = nf.fit(train, validation=validation, field=field, training=nf.Training(steps=300), progress=False)
    stages = {record.stage: record.validation_loss for record in fit.history}
    assert min(r.validation_loss for r in fit.history if r.stage == "derivative") < stages["main"]
    assert fit.score(train).nrmse < 0.02 and fit.score(validation).nrmse < 0.03
    (together,) = nf.fit_several(train, [fit.options], validation=validation)
    assert together.score(train).nrmse < 0.02
    both = nf.fit(
        train,
        validation=validation,
        field=field,
        training=fit.options.training,
        progress=False,
        options=nf.Options(ensemble=2),
    )
    assert max(nf.score(member, train).nrmse for member in both.model.members) < 0.02
    assert str(fit.model) == "NeuralODE of x, y; its field is of the class MLP"
    assert str(both.model) == f"Ensemble of 2 members, each a {fit.model}"
