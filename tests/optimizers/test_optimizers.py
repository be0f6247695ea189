"""Optimizers in isolation: against Optax, against formulas, and with invalid options."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import node_fit as nf
from node_fit.objectives.objective import Loss
from node_fit.runtime.placement import carry, dtype_of, scope

TARGET = {"a": np.array([1.0, -2.0, 3.0]), "b": np.array(0.5)}


def start(dtype=np.float32):
    return carry({"a": jnp.array([3.0, 1.0, -1.0]), "b": jnp.array(2.0)}, dtype)


def bowl(params) -> Loss:
    stretch = jnp.asarray([1.0, 10.0, 0.1], params["a"].dtype)
    misfit = stretch * (params["a"] - jnp.asarray(TARGET["a"], params["a"].dtype)) ** 2
    value = jnp.sum(misfit) + (params["b"] - jnp.asarray(0.5, params["b"].dtype)) ** 2
    return Loss(value, jnp.zeros((), jnp.int32))


def slope(params) -> Loss:
    """A loss with gradient 1 everywhere."""
    return Loss(sum(leaf.sum() for leaf in jax.tree.leaves(params)), jnp.zeros((), jnp.int32))


def take(optimizer, steps, loss=bowl, params=None, total=None):
    """Runs an optimizer; returns the parameters before each step and after the last, and the last state and `Step`."""
    params = start() if params is None else params
    total = total or steps
    state = carry(optimizer.init(params, total), jax.tree.leaves(params)[0].dtype)
    one = jax.jit(lambda p, s: optimizer.step(loss, p, s, total))
    path, step = [params], None
    for _ in range(steps):
        step = one(params, state)
        params, state = step.params, step.state
        path.append(params)
    return path, state, step


def by_optax(transformation, steps):
    params = start()
    state = transformation.init(params)
    path = [params]
    for _ in range(steps):
        gradient = jax.grad(lambda p: bowl(p).value)(params)
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


def assert_same_path(path, other):
    for mine, theirs in zip(path, other, strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), mine, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_is_optax_adamw(weight_decay, clip):
    mine = nf.Adam(0.1, schedule="constant", weight_decay=weight_decay, b1=0.8, b2=0.95, clip=clip)
    theirs = optax.adamw(0.1, b1=0.8, b2=0.95, weight_decay=weight_decay)
    if clip is not None:
        theirs = optax.chain(optax.clip_by_global_norm(clip), theirs)
    assert_same_path(take(mine, 10)[0], by_optax(theirs, 10))


def test_clipping_changes_the_path_and_not_the_reported_norm():
    # Gradient descent, since Adam's first step does not depend on the gradient's scale.
    plain, _, first = take(nf.Optax(optax.sgd(1.0)), 1)
    clipped, _, same = take(nf.Optax(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1.0))), 1)
    length = optax.tree.norm(optax.tree.sub(clipped[1], clipped[0]))
    np.testing.assert_allclose(length, 0.5, rtol=1e-5)
    assert optax.tree.norm(optax.tree.sub(plain[1], plain[0])) > 1
    np.testing.assert_array_equal(first.gradient_norm, same.gradient_norm)
    plain, clipped = (take(nf.Adam(0.5, clip=clip), 10) for clip in (None, 5.0))
    assert np.abs(plain[0][-1]["a"] - clipped[0][-1]["a"]).max() > 0.05
    _, _, same = take(nf.Adam(0.5, clip=0.5), 1)
    np.testing.assert_array_equal(first.gradient_norm, same.gradient_norm)


def expected_rates(schedule, steps, warmup=0.2):
    t = np.arange(steps)
    if schedule == "constant":
        return np.ones(steps)
    if schedule == "cosine":
        return 0.5 * (1 + np.cos(np.pi * t / steps))
    rise = int(warmup * steps)
    falling = 0.5 * (1 + np.cos(np.pi * (t - rise) / (steps - rise)))
    return np.where(t < rise, t / rise, falling)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "warmup_cosine"])
def test_schedules(schedule):
    """If the gradient is always 1, an Adam step equals the learning rate."""
    optimizer = nf.Adam(0.5, schedule=schedule, warmup=0.2)
    path, state, _ = take(optimizer, 20, loss=slope)
    taken = -np.diff([float(p["b"]) for p in path])
    np.testing.assert_allclose(taken, 0.5 * expected_rates(schedule, 20), atol=2e-5)
    # The rate after the last step is that of the end of the schedule.
    end = 0.5 if schedule == "constant" else 0.0
    np.testing.assert_allclose(optimizer.rate(state, 20), end, atol=1e-6)
    np.testing.assert_allclose(optimizer.rate(optimizer.init(start(), 20), 20), 0.5 * expected_rates(schedule, 20)[0])


def breaking(kind):
    """A loss that is finite until the first parameter falls below 2.9."""

    def loss(params) -> Loss:
        fine, moved = bowl(params).value, params["a"][0] < 2.9
        if kind == "gradient":  # The square root has an infinite slope at zero.
            extra = jnp.sqrt(jnp.where(moved, 0, 1) * params["b"])
        else:
            extra = jnp.where(moved, {"nan": jnp.nan, "inf": jnp.inf}[kind], 0)
        return Loss(fine + extra, jnp.zeros((), jnp.int32))

    return loss


@pytest.mark.parametrize("kind", ["gradient", "nan", "inf"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_that_is_not_finite_is_rejected(kind, clip):
    optimizer = nf.Adam(0.2, schedule="constant", weight_decay=0.1, clip=clip)
    params = start()
    state = optimizer.init(params, 10)
    good = optimizer.step(breaking(kind), params, state, 10)
    assert good.params["a"][0] < 2.9
    bad = optimizer.step(breaking(kind), good.params, good.state, 10)
    jax.tree.map(np.testing.assert_array_equal, bad.params, good.params)
    jax.tree.map(np.testing.assert_array_equal, bad.state, good.state)


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (nf.Adam, {"learning_rate": 0.0}, "learning_rate must be positive"),
        (nf.Adam, {"learning_rate": -1e-3}, "learning_rate must be positive"),
        (nf.Adam, {"learning_rate": float("nan")}, "learning_rate must be positive"),
        (nf.Adam, {"learning_rate": float("inf")}, "learning_rate must be"),
        (nf.Adam, {"weight_decay": -0.1}, "weight_decay must be finite and not negative"),
        (nf.Adam, {"schedule": "cosin"}, "schedule must be one of constant, cosine, warmup_cosine, got 'cosin'"),
        (nf.Adam, {"warmup": 1.0}, "warmup must be at least 0 and below 1"),
        (nf.Adam, {"b1": 1.0}, "b1 must be at least 0 and below 1"),
        (nf.Adam, {"b2": -0.1}, "b2 must be at least 0 and below 1"),
        (nf.Adam, {"clip": 0.0}, "clip must be positive, got 0.0"),
        (nf.Adam, {"clip": float("nan")}, "clip must be positive, got nan"),
        (nf.LBFGS, {"memory": 0}, "memory must be at least 1"),
        (nf.LBFGS, {"tries": 1}, "tries must be at least 2"),
        (nf.LBFGS, {"linesearch": "armijo"}, "linesearch must be zoom or backtracking, got 'armijo'"),
    ],
)
def test_numbers_out_of_range_are_refused(optimizer, options, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # Otherwise the tests' type checker raises first.
    with pytest.raises(ValueError, match=message):
        optimizer(**options)


def test_only_lbfgs_needs_the_full_batch():
    full = {
        "adam": nf.Adam(),
        "rmsprop": nf.Optax(optax.rmsprop(1e-3)),
        "zoom": nf.LBFGS(),
        "backtracking": nf.LBFGS(linesearch="backtracking"),
        "optax": nf.Optax(optax.lbfgs()),
    }
    assert [name for name, optimizer in full.items() if optimizer.full_batch] == ["zoom", "backtracking", "optax"]


@pytest.mark.parametrize("make", [optax.rmsprop, optax.adabelief, functools.partial(optax.sgd, momentum=0.9)])
def test_an_optax_transformation_is_applied_as_it_is(make):
    assert_same_path(take(nf.Optax(make(0.05)), 10)[0], by_optax(make(0.05), 10))


def test_an_optax_line_search_through_the_wrapper():
    path, state, step = take(nf.Optax(optax.lbfgs(memory_size=5)), 15)
    assert float(bowl(path[-1]).value) < 1e-8
    assert int(step.evaluations) >= 1
    assert np.isfinite(float(nf.Optax(optax.lbfgs(memory_size=5)).rate(state, 15)))


@pytest.mark.parametrize("linesearch", ["zoom", "backtracking"])
def test_lbfgs_minimises(linesearch, precision):
    with scope(precision):
        optimizer = nf.LBFGS(memory=5, linesearch=linesearch)
        path, state, step = take(optimizer, 40, params=start(dtype_of(precision)))
        losses = [float(bowl(p).value) for p in path]
        assert min(losses) < (1e-8 if precision == "x32" else 1e-14) * losses[0]
        assert step.params["a"].dtype == optimizer.rate(state, 40).dtype == dtype_of(precision)
    if linesearch == "backtracking":
        assert (np.diff(losses) <= 1e-6 * np.array(losses[:-1])).all()


def test_evaluations_are_what_they_are_called():
    """The reported evaluations equal the calls that the objective counts."""
    calls = []

    def counting(params) -> Loss:
        jax.debug.callback(lambda: calls.append(1))
        return bowl(params)

    params = start()
    for optimizer in (nf.Adam(), nf.LBFGS(memory=5)):
        calls.clear()
        state = optimizer.init(params, 10)
        step = optimizer.step(counting, params, state, 10)
        jax.effects_barrier()
        assert int(step.evaluations) == len(calls) == 1


def test_learning_rate_and_decay_are_numbers_of_the_program_and_names_are_not():
    numbers = jax.tree.leaves(eqx.filter(nf.Adam(0.1, weight_decay=0.2, b1=0.3, b2=0.4, clip=0.5), eqx.is_array_like))
    assert sorted(numbers) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert jax.tree.structure(nf.Adam(0.1)) == jax.tree.structure(nf.Adam(0.2))
    assert jax.tree.structure(nf.Adam(schedule="cosine")) != jax.tree.structure(nf.Adam(schedule="constant"))
