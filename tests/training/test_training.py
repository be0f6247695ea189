"""The training loop: interruption at any point, stopping, and the parameters that it keeps."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.callbacks import GoOn, Nowhere, Rows, Stop, alone, assert_equal, leaves, rows
from helpers.problems import SMALL, Quadratic, fit_to, problem, rotation

import node_fit as nf
from node_fit.evaluation.metrics import score_predictions
from node_fit.objectives.objective import Loss
from node_fit.runtime.placement import carry
from node_fit.training.decisions import DIVERGED
from node_fit.training.programs import StagePrograms
from node_fit.training.step import HOPELESS_STEPS, chunk, unroll
from node_fit.training.task import Minibatches, Stage, share, thin_rows

CHUNK = 5


RECIPES = {
    "adam": lambda: [Stage(Quadratic(), nf.Adam(1e-2, schedule="warmup_cosine"), 3 * CHUNK, "first")],
    "minibatches": lambda: [Stage(Quadratic(), nf.Adam(1e-2), 3 * CHUNK - 2, "first", batch_size=2)],
    "lbfgs": lambda: [Stage(Quadratic(), nf.LBFGS(memory=3), 3 * CHUNK, "first")],
    "backtracking": lambda: [Stage(Quadratic(), nf.LBFGS(memory=3, linesearch="backtracking"), 3 * CHUNK, "first")],
    "adam, then lbfgs": lambda: [
        Stage(Quadratic(), nf.Adam(1e-2), 2 * CHUNK, "first", batch_size=2),
        Stage(Quadratic(), nf.LBFGS(memory=3), 2 * CHUNK, "second"),
    ],
}


def train(recipe, callback=None, **options):
    options = {"chunk_steps": CHUNK, "field": SMALL, **options}
    return fit_to(rotation(), recipe=recipe, callbacks=[callback], **options)


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize(
    "name",
    [
        "minibatches",
        "adam, then lbfgs",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "lbfgs", "backtracking")),
    ],
)
def test_interrupted_equals_uninterrupted(name, tmp_path):
    """Bit for bit, through a file and a new training loop; also at the end of a stage and of the training."""
    whole = train(RECIPES[name]())
    for after in (1, 2, 3):
        folder = tmp_path / str(after)
        part = train(RECIPES[name](), Stop(folder, after))
        assert part.status == "interrupted"
        assert part.reason == "enough"
        assert len(part.history) == after
        rest = train(RECIPES[name](), GoOn(folder))
        assert rest.compiles == 0
        assert rows(part.history) + rows(rest.history) == rows(whole.history)
        assert (rest.status, rest.reason, rest.steps) == (whole.status, whole.reason, whole.steps)
        assert_equal(rest.model, whole.model)


def test_interrupted_equals_uninterrupted_with_validation(tmp_path):
    validation = rotation(2, times=6)
    options = {"validation": validation, "patience": 2}
    recipe = RECIPES["adam, then lbfgs"]
    whole = train(recipe(), **options)
    train(recipe(), Stop(tmp_path, 2), **options)
    rest = train(recipe(), GoOn(tmp_path), **options)
    assert [r.validation_loss for r in rest.history] == [r.validation_loss for r in whole.history[2:]]
    assert_equal(rest.model, whole.model)


def test_a_state_that_was_changed_goes_on_otherwise(tmp_path):
    """The comparison above can fail: a different step draws different minibatches."""
    whole = train(RECIPES["minibatches"]())
    train(RECIPES["minibatches"](), Stop(tmp_path, 1))

    class Tamper(GoOn):
        def restore(self, template):
            run = super().restore(template)
            state = eqx.tree_at(lambda s: s.step, run.members[0], carry(np.int32(2), np.float32))
            return nf.RunState(run.stage, run.offset, (state,))

    rest = train(RECIPES["minibatches"](), Tamper(tmp_path))
    assert any((a != b).any() for a, b in zip(leaves(rest.model), leaves(whole.model), strict=True))


def advance(optimizer, length, steps=12, **options):
    parts, stage, fixed, state = problem(optimizer, steps=steps, **options)
    span = np.array([0, length], np.int32)
    return state, jax.jit(lambda s: chunk((parts.static, stage), s, *share([fixed]), None, span)[0])


@pytest.mark.parametrize("optimizer", [nf.Adam(1e-2), nf.LBFGS(memory=3)], ids=["adam", "lbfgs"])
def test_steps_after_the_last_change_nothing(optimizer):
    state, long = advance(optimizer, 30)
    after = long(state)
    assert int(after.step) == 12
    assert int(after.evaluations) == 12
    again = long(after)
    for part in ("params", "opt_state", "step", "evaluations"):
        assert_equal(getattr(again, part), getattr(after, part))


def test_steps_after_a_stop_change_nothing():
    state, run = advance(nf.LBFGS(memory=3), 5)
    state = run(state)
    stopped = eqx.tree_at(lambda s: s.stuck, state, jnp.ones((), bool))
    after = run(stopped)
    assert_equal((after.params, after.opt_state, after.step), (state.params, state.opt_state, state.step))
    assert_equal(run(state).step, state.step + 5)


@pytest.mark.parametrize("optimizer", [nf.Adam(1e-2), nf.LBFGS(memory=3)], ids=["adam", "lbfgs"])
@pytest.mark.parametrize("length", [5, 7])
def test_the_length_of_chunks_changes_nothing(optimizer, length):
    state, whole = advance(optimizer, 12)
    expected = whole(state)
    _, run = advance(optimizer, length)
    lowest = []
    for _ in range(4):
        state = run(state)
        lowest.append(float(state.chosen.loss))
    assert_equal((state.params, state.opt_state), (expected.params, expected.opt_state))
    assert min(lowest) == float(expected.chosen.loss)


def test_the_two_scans_agree():
    parts, stage, fixed, state = problem(nf.Adam(1e-2))
    full = eqx.combine(fixed.stage, stage)
    lax, checkpointed = (
        jax.jit(lambda s, kind=kind: unroll(parts.static, full, fixed, s, 10, kind))(state)
        for kind in ("lax", "checkpointed")
    )
    for mine, theirs in zip(leaves(lax.params), leaves(checkpointed.params), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


class Cliff(Quadratic):
    """An objective that is NaN once the parameters have moved far."""

    edge: float = eqx.field(static=True, default=0.02)

    def loss(self, model, auxiliary, target):
        loss = super().loss(model, auxiliary, target)
        bias = model.field.network.layers[-1].bias
        start = SMALL(2, 0, key=jax.random.split(jax.random.key(0))[0]).network.layers[-1].bias
        away = jnp.abs(bias - start).max() > self.edge
        return Loss(jnp.where(away, jnp.nan, loss.value), jnp.zeros((), jnp.int32))


def test_the_best_iterate_is_kept_and_is_never_nan():
    watcher = Rows()
    recipe = [Stage(Cliff(), nf.Optax(optax.sgd(0.05)), 40)]
    result = train(recipe, watcher)
    assert int(watcher.state.members[0].restarts) > 0, "the edge was never reached, so the test is void"
    losses = [r.train_loss for r in result.history if np.isfinite(r.train_loss)]
    assert float(watcher.state.members[0].best.loss) == min(losses)
    assert all(np.isfinite(leaf).all() for leaf in leaves(result.model))


# A rate that is far too high, so the loss first falls and then rises.
RISING = nf.Optax(optax.chain(optax.trace(0.95), optax.scale(-1.0)))


def test_the_best_parameters_have_the_best_loss():
    """The returned parameters are those of the reported loss."""
    result = train([Stage(Quadratic(), RISING, 40)])
    objective = Quadratic()
    batch = carry(objective.prepare(rotation(), result.model), np.float32)
    value = jax.jit(lambda m: objective.loss(m, None, alone(batch)).value)(result.model)
    np.testing.assert_allclose(value, min(r.train_loss for r in result.history), rtol=1e-5)
    assert result.history[-1].train_loss > min(r.train_loss for r in result.history)


@pytest.mark.parametrize("optimizer", [nf.Adam(1e-2), nf.LBFGS(memory=3)], ids=["adam", "lbfgs"])
def test_a_fit_without_any_finite_loss_has_failed(optimizer):
    result = train([Stage(Nowhere(), optimizer, 50)])
    assert result.status == "failed"
    assert "no loss was finite in the first 5 evaluations (5 failed solves)" in result.reason
    assert len(result.history) == 1
    # The parameters are the unchanged initial ones.
    start = SMALL(2, 0, key=jax.random.split(jax.random.key(0))[0])
    assert_equal(result.model.field, start)


SHORT = {"field": functools.partial(nf.MLP, width=8, depth=1), "recipe": "direct", "ridge": 0.0, "chunk_steps": 10}


def test_steps_that_are_made_anew_do_not_lose_the_best(monkeypatch):
    """The held steps are renewed after a chunk that is worse than an earlier one."""
    refine, calls = StagePrograms.refine, itertools.count()

    def anew(self, states, **options):
        found = refine(self, states, **options)
        return found._replace(changed=True) if next(calls) == 4 else found

    monkeypatch.setattr(StagePrograms, "refine", anew)
    fit = fit_to(rotation(), optimizer=RISING, steps=50, **SHORT)
    losses = [record.train_loss for record in fit.history]
    assert losses[3] > 1.5 * min(losses[:3]), "the chunk was not worse, so the test is void"
    assert losses[4] <= 1.01 * min(losses[:3])
    assert score_predictions(rotation(), fit.predict(rotation())).nrmse ** 2 == pytest.approx(min(losses), rel=0.01)


def test_steps_do_not_follow_a_fit_that_has_gone_astray(monkeypatch):
    refine, given = StagePrograms.refine, []

    def kept(self, states, **options):
        given.append((self, states, options))
        return refine(self, states, **options)

    monkeypatch.setattr(StagePrograms, "refine", kept)
    fit_to(rotation(), optimizer=nf.Adam(), steps=10, **SHORT)
    programs, (state,), options = given[-1]
    assert not options
    faster = jax.tree.map(lambda weight: 8 * weight, state.chosen.params)
    for loss, follows in ((1.0, True), (2 * DIVERGED, False)):
        chosen = dataclasses.replace(state.chosen, params=faster, loss=np.float32(loss) * state.reference)
        found = refine(programs, [dataclasses.replace(state, chosen=chosen)])
        assert found.changed == (found.grids[0] is not state.grid) == follows


@pytest.mark.parametrize(("limit", "reason"), [(1e-9, "took all 50 steps"), (1e9, "evaluations in a row")])
def test_what_the_errors_of_held_steps_forbid_is_no_failure_of_the_fit(monkeypatch, limit, reason):
    """Each chunk seems to end in evaluations without use; those at the limit wait for finer steps, others restart."""
    advance = StagePrograms.advance

    def forbidden(self, states, *watch):
        found = advance(self, states, *watch)
        ends = {"rejected": np.int32(HOPELESS_STEPS), "error_limit": np.float32(limit)}
        return found._replace(states=[dataclasses.replace(state, **ends) for state in found.states])

    monkeypatch.setattr(StagePrograms, "advance", forbidden)
    fit = fit_to(rotation(), optimizer=nf.Adam(), steps=50, precision="x32", **SHORT)
    assert reason in fit.reason
    assert fit.steps == (50 if limit < 1 else 40)


def test_patience_ends_the_stage_and_the_best_on_validation_is_kept():
    """The validation data rotate the other way, so fitting the training data makes their loss worse."""
    recipe = [Stage(Quadratic(), nf.Adam(5e-2, schedule="constant"), 500)]
    watcher = Rows()
    result = train(recipe, watcher, validation=rotation(2, rate=-1.0), patience=3)
    assert result.status == "stopped"
    assert "validation loss has not improved for 3 chunks" in result.reason
    losses = [r.validation_loss for r in result.history]
    assert len(losses) == int(np.argmin(losses)) + 1 + 3
    assert float(watcher.state.members[0].best.loss) == np.float32(min(losses))
    assert result.history[-1].train_loss < result.history[0].train_loss


def test_a_stall_ends_the_stage_of_a_line_search():
    """Optax's line search never reports that it is stuck, so a stalled loss must end it."""
    noisy = nf.Dataset.from_arrays(
        rotation().ts[0], rotation().ys + 0.2 * np.random.default_rng(0).normal(size=(3, 12, 2))
    )
    optimizer = nf.LBFGS(memory=3, linesearch="backtracking")
    result = fit_to(noisy, field=nf.Linear, recipe=[Stage(nf.DerivativeMatching(), optimizer, 1000)], chunk_steps=CHUNK)
    assert result.status == "converged"
    assert "stalled" in result.reason
    assert result.steps < 200
    # Adam runs all of its steps, since its schedule can look like a stall.
    result = fit_to(noisy, field=nf.Linear, recipe=[Stage(nf.DerivativeMatching(), nf.Adam(), 200)], chunk_steps=CHUNK)
    assert (result.status, result.steps) == ("completed", 200)


LAST_BIAS = "field.network.layers.1.bias"


@pytest.mark.parametrize("optimizer", [nf.Adam(1e-2, weight_decay=0.1), nf.LBFGS(memory=3)], ids=["adamw", "lbfgs"])
def test_frozen_parameters_do_not_move(optimizer):
    result = train(
        [Stage(Quadratic(), optimizer, 10)], freeze=["field.network.layers.0", "field.network.layers.1.bias"]
    )
    start = SMALL(2, 0, key=jax.random.split(jax.random.key(0))[0])
    assert_equal(result.model.field.network.layers[0], start.network.layers[0])
    assert_equal(result.model.field.network.layers[1].bias, start.network.layers[1].bias)
    assert (np.asarray(result.model.field.network.layers[1].weight) != np.asarray(start.network.layers[1].weight)).all()
    assert result.parameters == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [("field.network.layer.0", "did you mean 'field.network.layers.0'"), ("field", "nothing is left to train")],
)
def test_what_cannot_be_frozen_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        train([Stage(Quadratic(), nf.Adam(), 10)], freeze=[name])


def test_minibatches_are_drawn_without_replacement():
    rows = {"x": np.arange(10), "y": 2 * np.arange(10)}
    drawn = Minibatches(rows, 4, (0, 1)).chunk(5, 20)
    assert drawn["x"].shape == (20, 4)
    assert all(len(set(draw)) == 4 for draw in drawn["x"].tolist())
    assert (drawn["y"] == 2 * drawn["x"]).all()
    assert set(drawn["x"].flat) == set(range(10))
    # A batch size above the number of rows gives all rows.
    assert sorted(Minibatches(rows, 50, (0,)).chunk(0, 1)["x"][0].tolist()) == list(range(10))


def test_a_step_draws_the_same_minibatch_in_any_chunk():
    stream = Minibatches(np.arange(100), 7, (3, 0))
    whole = stream.chunk(0, 30)
    np.testing.assert_array_equal(np.concatenate([stream.chunk(0, 13), stream.chunk(13, 17)]), whole)
    assert (Minibatches(np.arange(100), 7, (4, 0)).chunk(0, 30) != whole).any()


def test_a_bootstrapped_member_draws_from_its_own_rows():
    pool = np.array([1, 1, 1, 5, 5, 8])
    drawn = Minibatches(10 * np.arange(10), 3, (0,), pool).chunk(0, 200)
    assert set(drawn.flat) == {10, 50, 80}
    assert np.mean(drawn == 10) == pytest.approx(1 / 2, abs=0.05)


def test_a_sample_is_spread_evenly():
    assert thin_rows(np.arange(100), 5).tolist() == [0, 24, 49, 74, 99]
    assert thin_rows(np.arange(4), 5).tolist() == [0, 1, 2, 3]


def test_each_step_draws_its_own_minibatch():
    drawn = []

    class Spy(Quadratic):
        def loss(self, model, auxiliary, target):
            if len(target.batch.first) == 2:  # not the sample on which chunks are judged
                jax.debug.callback(lambda start: drawn.append(start.tobytes()), target.batch.first)
            return super().loss(model, auxiliary, target)

    train([Stage(Spy(), nf.Adam(), 20, batch_size=2)])
    jax.effects_barrier()
    assert len(drawn) == 20 + 1  # steps, and a look at where the last one led
    assert len(set(drawn)) > 2


def test_seeds():
    first, again, other = (train(RECIPES["minibatches"](), seed=seed) for seed in (0, 0, 1))
    assert_equal(first.model, again.model)
    assert any((a != b).any() for a, b in zip(leaves(first.model.field), leaves(other.model.field), strict=True))


def test_a_stage_begins_at_the_best_of_the_one_before():
    """The first stage ends far from its best point."""
    stages = [Stage(Quadratic(), RISING, 40), Stage(Quadratic(), nf.Adam(1e-6), CHUNK)]
    history = train(stages).history
    assert history[-1].train_loss == pytest.approx(min(r.train_loss for r in history[:-1]), rel=1e-3)
    assert history[-2].train_loss > 1.1 * history[-1].train_loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_a_stage_refuses_numbers_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        functools.partial(Stage, Quadratic(), nf.Adam())(**{"steps": 5, **options})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"chunk_steps": 0}, {"patience": 0}])
def test_a_fit_refuses_numbers_out_of_range(options):
    with pytest.raises(ValueError, match="at least 1"):
        train(RECIPES["adam"](), **options)
