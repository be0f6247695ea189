"""Paired comparison of two models' errors: chance rarely decides, and what is better is found."""

import numpy as np

from node_fit.evaluation.comparison import compare_squares
from node_fit.evaluation.residuals import RISK


def ahead(seed, rows, better, last=0.0):
    """The probability of the second model's lead: errors of both have a lasting part of their own."""
    chance = np.random.default_rng(seed).normal(size=(2, rows))
    for row in range(1, rows):
        chance[:, row] = last * chance[:, row - 1] + (1 - last**2) ** 0.5 * chance[:, row]
    counted = np.ones((1, rows), bool)
    return compare_squares(chance[:1] ** 2, (better * chance[1:]) ** 2, counted)


def test_models_that_are_as_good_are_rarely_told_apart():
    """Of independent errors, and of errors that last for several rows; three standard errors of 400 draws are 1.5 %."""
    for rows, last in ((12, 0.0), (40, 0.0), (80, 0.7)):
        assert np.mean([ahead(seed, rows, 1.0, last) < RISK for seed in range(400)]) <= 0.025


def test_a_better_model_is_found():
    assert np.mean([ahead(seed, 200, 0.5) < RISK for seed in range(50)]) >= 0.95


def test_few_rows_and_rows_that_do_not_count_tell_nothing():
    one, other = np.ones((1, 5)), np.zeros((1, 5))
    assert compare_squares(one, other, np.ones((1, 5), bool)) == 1.0
    far, near = np.ones((2, 20)), np.zeros((2, 20))
    assert compare_squares(far, near, np.ones((2, 20), bool)) == 0.0
    assert compare_squares(far, near, np.zeros((2, 20), bool)) == 1.0
