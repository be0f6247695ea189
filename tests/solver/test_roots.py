"""Roots of implicit stages that are not found."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from optimistix import RESULTS

from node_fit.solver.row_by_row import SafeRoot


@pytest.mark.parametrize(
    "result", [RESULTS.successful, RESULTS.nonlinear_divergence, RESULTS.nonlinear_max_steps_reached]
)
def test_a_root_that_was_not_found_is_zero(result):
    chord = diffrax.VeryChord(rtol=1e-6, atol=1e-6)
    finder = SafeRoot(chord.rtol, chord.atol, chord.norm, chord)
    reached = jnp.array([1e30, jnp.nan, 3.0])
    root, _, _ = finder.postprocess(lambda y, args: (y, None), reached, None, None, {}, None, frozenset(), result)
    assert np.asarray(root) == pytest.approx(reached if result == RESULTS.successful else np.zeros(3), nan_ok=True)
