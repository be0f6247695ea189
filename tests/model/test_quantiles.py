"""Conformal quantiles of scores: levels that hold whatever the scores are distributed like."""

import numpy as np

from node_fit.model.ensemble import BAND_LEVELS, conformal


def test_a_quantile_is_of_one_score_more_than_there_are_and_at_most_the_largest():
    found = conformal(np.arange(1.0, 20.0)[::-1].copy())
    assert BAND_LEVELS[49] == 0.5 and found[49] == 10.0  # the 10th of 19
    assert found[89] == 18.0 and found[98] == 19.0
    assert conformal(np.arange(1.0, 11.0))[89] == 10.0


def test_scores_that_are_not_finite_count_as_larger_than_all():
    scores = np.array([1.0, 2.0, 3.0, np.inf, np.nan])
    found = conformal(scores)
    assert found[29] == 2.0 and found[98] == 3.0
    assert np.isinf(conformal(np.array([np.inf]))).all()
