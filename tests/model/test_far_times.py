"""Equations that read a time far from zero are computed in double precision, in which rows can be told apart."""

import functools
import logging

import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.fitting.fit import with_precision
from node_fit.model.make_model import needs_double
from node_fit.runtime.placement import precision_of

SWING = functools.partial(nf.Known, equations={"x": "cos(2*t)"})


def record(begin: float, gap: float = 0.25, rows: int = 21) -> nf.Dataset:
    """The integral of cos(2 t)."""
    ts = begin + gap * np.arange(rows)
    return nf.Dataset.from_arrays(ts, np.sin(2 * ts)[:, None] / 2, states=["x"])


@pytest.mark.parametrize("begin", [0.0, -1e7, 1e9])
def test_the_solution_is_exact_wherever_a_record_begins(begin):
    data = record(begin)
    model = nf.make_model(data, field=SWING, solver=nf.Solver(rtol=1e-6, atol=1e-8), key=jax.random.key(0))
    assert precision_of(model) == ("x64" if begin else "x32")
    np.testing.assert_allclose(model.predict(data), data.ys, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "needs"),
    [
        (SWING, True),
        (functools.partial(nf.Known, equations={"x": "-x"}), False),
        (functools.partial(nf.Known, equations={"x": "-x"}, triggers=[{"when": "3 - t", "set": {"x": "1"}}]), True),
        (functools.partial(nf.Known, equations={"x": "-x"}, triggers=[{"when": "x", "set": {"x": "t"}}]), True),
        (functools.partial(nf.Hybrid, equations={"x": "sin(t)"}), True),
        (functools.partial(nf.Known, equations={"x": "cos("}), False),
        (nf.MLP, False),
    ],
)
def test_what_reads_the_time_needs_double(field, needs):
    assert needs_double(field, record(1e7)) == needs
    assert not needs_double(field, record(0.0))


def test_a_made_field_and_several_records_need_double():
    model = nf.make_model(record(0.0), field=SWING, key=jax.random.key(0))
    both = nf.Dataset.from_arrays(np.stack([record(0.0).ts[0], record(1e8).ts[0]]), np.zeros((2, 21, 1)), states=["x"])
    assert needs_double(model.field, both)
    assert not needs_double(model.field, record(1e4, gap=10.0))


def test_a_fit_says_that_it_is_in_double_precision(caplog):
    options = nf.Options(field=SWING, precision="x32")
    with caplog.at_level(logging.WARNING):
        assert with_precision(options, options.field, record(0.0)).precision == "x32"
        assert not caplog.text
        assert with_precision(options, options.field, record(1e9)).precision == "x64"
    assert (
        "precision=x64: the equations read the time t, of which x32 resolves only multiples of 64 at 1e+09"
        in caplog.text
    )
