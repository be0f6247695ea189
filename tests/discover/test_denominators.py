"""Constants that a search refines by simulation."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.discover.formulas import Term, are_in_denominators, part_of, sum_of
from node_fit.discover.judging import Judge
from node_fit.discover.search import smooth_records


@pytest.mark.parametrize(
    ("term", "below"),
    [
        ("(x/(0.3 + x))", [False, True]),
        ("(y*x**2/(0.3**2 + x**2))", [False, True]),
        ("(x/(0.3 + x + x**2/0.3))", [False, True, True]),
        ("sigmoid((x - 0.3)/0.25)", [False, False, True]),  # A threshold can be on either side of zero.
        ("x/y", [False]),
    ],
)
def test_constants_in_denominators_are_known(term, below):
    assert [*are_in_denominators(part_of(term)[0])] == below


def test_a_half_saturation_stays_positive():
    """A store that is emptied at a constant rate is fitted best with a half-saturation at zero, or beyond it."""
    t = np.linspace(0, 4, 30)
    x = 5 - t + 0.05 * np.random.default_rng(2).normal(size=30)
    judge = Judge(smooth_records(nf.Dataset.from_arrays(t, x, states=["x"]), 1.0, ()), ["x"], [])
    saturating = sum_of([Term("(x/(0.3 + x))", 6)], [-1.0])
    (best,) = judge.judge([(saturating,)], trials=30)
    rate, half = best.formulas[0].constants
    assert 0 < half < 0.3 and -1.1 < rate < -0.9
