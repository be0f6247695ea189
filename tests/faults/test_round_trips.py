"""Training states and models survive a round trip bit for bit."""

import functools
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from faults.moments import content, fill, model, restore, state_at
from node_fit.storage.model_file import save
from node_fit.training.callback import RunState

SEEDS = st.integers(0, 2**32 - 1)
PRECISIONS = st.sampled_from(["x32", "x64"])


@functools.cache
def template(precision: str, optimizer: str):
    return state_at(0, precision=precision, optimizer=getattr(nf, optimizer)())


def scrambled(tree, seed: int):
    """The tree with random bits in its arrays: NaNs with a payload, denormals, infinities, and zeros of both signs."""
    draw = np.random.default_rng(seed)

    def leaf(x):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed % 1000)
        if x.dtype == bool:
            return draw.random(x.shape) < 0.5
        return np.frombuffer(draw.bytes(x.nbytes), x.dtype).reshape(x.shape)

    return jax.tree.map(leaf, tree)


@pytest.mark.usefixtures("no_fault")
@settings(max_examples=20, deadline=None)
@given(SEEDS, PRECISIONS, st.sampled_from(["Adam", "LBFGS"]), st.integers(0, 3), st.integers(0, 10**6))
def test_any_checkpoint(seed, precision, optimizer, stage, offset):
    state = scrambled(template(precision, optimizer), seed)
    state = eqx.tree_at(lambda s: s.step, state, np.asarray(seed % 10**6, np.int32))
    moment = RunState(stage, offset, (state,))
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), moment)
        back = restore(Path(folder), precision=precision, optimizer=getattr(nf, optimizer)())
    assert content(back) == content(moment)


@pytest.mark.slow
@pytest.mark.usefixtures("no_fault")
@settings(max_examples=20, deadline=None)
@given(SEEDS, PRECISIONS, st.integers(1, 5))
def test_any_model(seed, precision, width):
    # Without the solver, whose tolerances must be positive.
    where = lambda m: (m.field, m.scaler)  # noqa: E731
    plain = model(width, precision)
    dynamic, static = eqx.partition(where(plain), eqx.is_array)
    # A model whose weights are not finite is refused.
    finite = jax.tree.map(lambda x: np.where(np.isfinite(x), x, x.dtype.type(0)), scrambled(dynamic, seed))
    scrambled_model = eqx.tree_at(where, plain, eqx.combine(finite, static))
    with tempfile.TemporaryDirectory() as folder:
        save(scrambled_model, Path(folder) / "model")
        back = nf.load(Path(folder) / "model")
    mine, theirs = (jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (scrambled_model, back))
    assert jax.tree.structure(back) == jax.tree.structure(scrambled_model)
    for one, other in zip(mine, theirs, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
