"""Constants that have run to an end of their range are named, and such a fit is never good."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import node_fit as nf
from node_fit.evaluation.case import Case
from node_fit.evaluation.diagnosis import diagnose
from node_fit.evaluation.ends import describe_constant_at_end, first_values


@pytest.mark.parametrize(
    ("value", "bounds", "first", "said"),
    [
        (6e-16, (0.0, None), 1.0, "6e-16, its bound being 0 and its first value 1"),
        (1e17, (0.0, None), 10.0, "1e+17 from its first value, 10"),
        (-3e14, (None, None), 1e3, "-3e+14 from its first value, 1000"),
        (np.inf, (0.0, None), 1.0, "inf"),
        (1.0 - 1e-9, (0.0, 1.0), 0.5, "its bound 1"),
        (2.0 - 1e-12, (None, 2.0), 1.0, "2, its bound being 2 and its first value 1"),
        (3e-4, (0.0, None), 1.0, None),
        (5e6, (0.0, None), 1.0, None),
        (1e-12, (None, None), 1.0, None),
        (0.999, (0.0, 1.0), 0.5, None),
        (7.0, (None, None), 0.0, None),
        (7.0, (0.0, None), None, None),
    ],
)
def test_an_end_is_a_bound_or_far_from_the_first_value(value, bounds, first, said):
    assert describe_constant_at_end(value, bounds, first) == said


def test_first_values_are_those_of_equations_and_starts():
    field = functools.partial(nf.Known, equations={"x": "-a*x"}, constants={"a": [0.5, 0, None]})
    start = functools.partial(nf.Stated, values={"x": "b"}, constants={"b": 2})
    assert first_values(nf.Options(field=field, start=start)) == {"a": 0.5, "b": 2.0}
    assert first_values(nf.Options()) == {}


def test_a_fit_whose_constants_are_at_an_end_or_off_their_optimum_is_not_good():
    ys = np.sin(np.linspace(0.0, 6.0, 50))[None, :, None]
    data = nf.Dataset.from_arrays(np.linspace(0.0, 6.0, 50), ys, states=["x"])
    good = Case("converged", [], {"train": data}, {"train": ys + 1e-6})
    assert diagnose(good).kind in ("good", "noise-limited")
    ended = diagnose(replace(good, ends=("R1 has run to 6e-16",)))
    assert ended.kind == "undetermined" and "R1 has run to 6e-16" in ended.sentence
    far = diagnose(replace(good, distance=lambda: 2.5))
    assert far.kind == "unfinished" and "2.5 standard errors from their optimum" in far.sentence
    assert diagnose(replace(good, distance=lambda: 0.1)).kind == diagnose(good).kind
