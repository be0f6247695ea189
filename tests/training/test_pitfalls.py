"""Known pitfalls of combining Optax, Equinox and Diffrax.

Each has a guard in this package and a test that fails without it. The docstrings link to the reports.
"""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.problems import SMALL, Quadratic, fit_to, problem, rotation
from jaxtyping import TypeCheckError

import node_fit as nf
from node_fit.runtime.compilation import Compilations, Programs, count_calls
from node_fit.runtime.placement import dtype_of, precision_of, scope
from node_fit.training.step import check_carry, check_scan, chunk, unroll
from node_fit.training.task import share

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_cache")]

OPTIMIZERS = {
    "adam": lambda: nf.Adam(1e-2),
    "adamw": lambda: nf.Adam(1e-2, weight_decay=1e-3, schedule="warmup_cosine"),
    "lbfgs": lambda: nf.LBFGS(memory=5),
    "lm": lambda: nf.LevenbergMarquardt(),
    "backtracking": lambda: nf.LBFGS(memory=5, linesearch="backtracking"),
    "optax.lbfgs": lambda: nf.Optax(optax.lbfgs(memory_size=5)),
    "optax.rmsprop": lambda: nf.Optax(optax.rmsprop(1e-3)),
    "optax.sgd": lambda: nf.Optax(optax.sgd(1e-3, momentum=0.9)),
    "optax.adabelief": lambda: nf.Optax(optax.adabelief(1e-3)),
}


def run_chunks(optimizer, chunks=4, programs=None, **options):
    """Number of compilations in `chunks` chunks, and the state after them."""
    parts, stage, fixed, state = problem(optimizer, **options)
    programs = programs or Programs()
    count = Compilations()
    static = (parts.static, stage)
    given = (*share([fixed]), None, jnp.asarray([0, 5], jnp.int32))
    program = programs.get(chunk, static, (state, *given), count, lambda out: check_carry(state, out[0]))
    with count_calls(count):
        for _ in range(chunks):
            state, _ = program(state, *given)
    return count.count, state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optax_1171_line_search_recompiles(name):
    """https://github.com/google-deepmind/optax/issues/1171"""
    compiles, state = run_chunks(OPTIMIZERS[name]())
    assert compiles == 1
    assert int(state.step) == 20


def test_optax_1171_guard_is_needed():
    """Without strong types in the initial state, the plain line search compiles twice."""
    parts, stage, fixed, state = problem(nf.Optax(optax.lbfgs(memory_size=5)))
    weak = eqx.tree_at(lambda s: s.best.loss, state, jnp.asarray(1.0))
    assert weak.best.loss.weak_type
    count = Compilations()
    static, span = (parts.static, stage), np.array([0, 5], np.int32)
    step = jax.jit(lambda s, f: chunk(static, s, *share([f]), None, span)[0])
    with count_calls(count):
        for _ in range(3):
            weak = step(weak, fixed)
    assert count.count > 1


def test_equinox_940_equal_optimizers_recompile():
    """https://github.com/patrick-kidger/equinox/issues/940: equal optimizers and new learning rates compile once."""
    programs = Programs()
    counts = [run_chunks(nf.Adam(rate), programs=programs)[0] for rate in (1e-3, 1e-3, 3e-3, 1e-2)]
    assert counts == [1, 0, 0, 0]
    # Numbers inside an Optax transformation are part of the program; the guard avoids this.
    counts = [run_chunks(nf.Optax(optax.adam(1e-3)), programs=programs)[0] for _ in range(2)]
    assert counts == [1, 1]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["x32", "x64", "x32 in an x64 process"])
@pytest.mark.parametrize("scan", ["lax", "checkpointed"])
def test_optax_1210_state_changes_dtype_in_a_scan(name, kind, scan):
    """https://github.com/google-deepmind/optax/issues/1210"""
    process, run = ("x64", "x32") if "process" in kind else (kind, kind)
    # Like `fit`, which sets the run's precision regardless of the process's precision.
    with scope(process), scope(run):
        parts, stage, fixed, state = problem(OPTIMIZERS[name](), run)
        full = eqx.combine(fixed.stage, stage)
        after = jax.eval_shape(lambda s: unroll(parts.static, full, fixed, s, 3, scan), state)
        check_carry(state, after)
        floats = {leaf.dtype for leaf in jax.tree.leaves(after) if jnp.issubdtype(leaf.dtype, jnp.floating)}
        assert floats == {dtype_of(run)}


@pytest.mark.parametrize("name", ["adam", "adamw", "lbfgs", "lm"])
def test_optax_1210_float32_parameters_traced_in_x64_mode(name):
    """This package's own optimizers keep float32 even in a float64 environment."""
    with scope("x64"):
        parts, stage, fixed, state = problem(OPTIMIZERS[name](), "x32")
        full = eqx.combine(fixed.stage, stage)
        check_carry(state, jax.eval_shape(lambda s: unroll(parts.static, full, fixed, s, 3), state))


def test_optax_1210_guard_is_needed():
    """Without a scope, Optax's search with float32 parameters in x64 mode changes the dtype of its state."""
    with scope("x64"):
        parts, stage, fixed, state = problem(OPTIMIZERS["backtracking"](), "x32")
        full = eqx.combine(fixed.stage, stage)
        with pytest.raises(TypeError):
            jax.eval_shape(lambda s: unroll(parts.static, full, fixed, s, 3), state)


def test_a_changing_carry_is_refused_by_name():
    _, _, _, state = problem(nf.Adam())
    wider = eqx.tree_at(lambda s: s.evaluations, state, jax.ShapeDtypeStruct((), jnp.int16))
    with pytest.raises(TypeError, match=r"evaluations from int32\[\] to int16\[\]"):
        check_carry(state, wider)
    weak = eqx.tree_at(lambda s: s.reference, state, jax.ShapeDtypeStruct((), jnp.float32, weak_type=True))
    with pytest.raises(TypeError, match=r"reference .*weak"):
        check_carry(state, weak)


def widened(*arguments):
    """A chunk that counts in floats."""
    state, rate = chunk(*arguments)
    return eqx.tree_at(lambda s: s.evaluations, state, state.evaluations.astype(jnp.float32)), rate


@pytest.mark.parametrize("members", [1, 2])
def test_a_fit_refuses_a_chunk_that_changes_its_carry(monkeypatch, members):
    """Before anything is compiled; the second chunk could not be called."""
    monkeypatch.setattr("node_fit.training.programs.chunk", widened)
    stage = nf.Stage(Quadratic(), nf.Adam(1e-2), 4)
    with pytest.raises(TypeError, match=r"a training step changes its state: .*evaluations from int32.* to float32"):
        fit_to(rotation(), field=SMALL, recipe=[stage], chunk_steps=4, ensemble=members)


def test_mixed_dtypes_are_refused_by_name():
    with scope("x64"):
        field = SMALL(2, 0, key=jax.random.key(0))
        mixed = eqx.tree_at(lambda f: f.network.layers[0].bias, field, field.network.layers[0].bias.astype(jnp.float32))
        with pytest.raises(ValueError, match=r"bias is float32|weight is float64"):
            precision_of(mixed)
        with pytest.raises(ValueError, match="one dtype"):
            fit_to(rotation(), field=mixed, precision="x64", steps=1)


class Holding(eqx.Module):
    """A realistic field: with an integer array, a frozen table, a function, a solver and a controller."""

    weight: jax.Array
    order: jax.Array
    table: np.ndarray
    activation: object
    method: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController

    def __init__(self):
        self.weight = jax.random.normal(jax.random.key(0), (2, 2)) / 10
        self.order = jnp.array([0, 1])
        self.table = np.ones(2, np.float32)
        self.activation = jnp.tanh
        self.method = diffrax.Tsit5()
        self.controller = diffrax.PIDController(rtol=1e-3, atol=1e-6)

    def __call__(self, t, y, u):
        return self.activation(self.weight @ y[self.order]) * self.table


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equinox_640_state_of_other_leaves_than_the_gradient(name):
    """https://github.com/patrick-kidger/equinox/issues/640: an integer array and a frozen array change nothing."""
    compiles, state = run_chunks(OPTIMIZERS[name](), field=Holding(), freeze=("field.table",))
    assert compiles == 1
    trained = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.params)}
    assert trained == {".model.field.weight"}


@pytest.mark.parametrize("name", ["optax.rmsprop", "optax.sgd", "optax.adabelief"])
def test_equinox_640_guard_is_needed(name):
    """A state initialised from all arrays and updated with the gradient of the float arrays changes its structure."""
    field = Holding()
    transform = OPTIMIZERS[name]().transformation
    arrays = eqx.filter(field, eqx.is_array)
    state = transform.init(arrays)
    gradient = eqx.filter_grad(lambda f: f(0.0, jnp.ones(2), jnp.ones(0)).sum())(field)
    _, after = transform.update(gradient, state, arrays)
    assert jax.tree.structure(after) != jax.tree.structure(state)


def test_equinox_640_each_part_is_traced_once():
    # Once in the program, and once before it, where the field's size is checked.
    traces = eqx.debug.assert_max_traces(lambda y: y, max_traces=2)

    class Counting(eqx.Module):
        weight: jax.Array

        def __call__(self, t, y, u):
            return traces(self.weight @ y)

    run_chunks(nf.LBFGS(memory=5), field=Counting(jnp.eye(2)), chunks=3)


@pytest.mark.parametrize("name", ["lbfgs", "backtracking", "optax.lbfgs", "lm"])
def test_optax_1017_modules_with_leaves_that_are_no_arrays(name):
    """https://github.com/google-deepmind/optax/issues/1017, 1304, 1399: a neural ODE with an activation, a solver and
    a controller, through a real solve."""
    objective = nf.TrajectoryMatching(solver=nf.Solver(rtol=1e-3))
    compiles, state = run_chunks(OPTIMIZERS[name](), field=Holding(), objective=objective, chunks=2)
    assert compiles == 1
    assert np.isfinite(float(state.chosen.loss))


def test_optax_1017_guard_is_needed():
    """Given the whole module instead of its arrays, Optax's L-BFGS fails on leaves that are not arrays."""
    with pytest.raises((AttributeError, TypeError)):
        optax.lbfgs().init(Holding())


def test_a_state_is_donatable_and_committed():
    """A new L-BFGS state holds one buffer twice, which can't be donated; `carry` gives each leaf its own buffer."""
    _, _, _, state = problem(nf.LBFGS(memory=5))
    leaves = [x for x in jax.tree.leaves(state) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
    assert all(x.committed and not x.weak_type for x in leaves)


def test_unknown_scan_is_refused():
    """Equinox treats any unknown kind as "checkpointed"."""
    with pytest.raises(ValueError, match="lax or checkpointed, got 'chekpointed'"):
        check_scan("chekpointed")
    parts, stage, fixed, state = problem(nf.Adam())
    # The tests' type checker may raise first, with its own message.
    with pytest.raises((ValueError, TypeCheckError), match="scan"):
        unroll(parts.static, eqx.combine(fixed.stage, stage), fixed, state, 3, "chekpointed")


def test_minibatches_for_lbfgs_are_refused_by_name():
    with pytest.raises(ValueError, match="batch_size can't be combined with LBFGS"):
        fit_to(rotation(), field=SMALL, optimizer=nf.LBFGS(), steps=1, batch_size=1)


@pytest.mark.parametrize("wrap", [nf.Optax, lambda chain: chain], ids=["Optax", "bare"])
def test_clipping_before_lbfgs_in_a_chain_is_refused(wrap):
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.lbfgs())
    with pytest.raises(ValueError, match="first transformation"):
        fit_to(rotation(), field=SMALL, optimizer=wrap(chain), steps=1)


def test_sweeps_compile_once_for_three_seeds_and_three_learning_rates():
    compiles = [
        fit_to(
            rotation(),
            field=functools.partial(nf.MLP, width=9, depth=1),
            optimizer=nf.Adam(rate),
            recipe="direct",
            steps=4,
            chunk_steps=2,
            seed=seed,
        ).compiles
        for seed in range(3)
        for rate in (1e-3, 3e-3, 1e-2)
    ]
    assert sum(compiles) == compiles[0] == 1
