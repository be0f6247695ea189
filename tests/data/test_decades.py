"""Rows that span decades of time: when they do, and what is chosen for them."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.data.facts import Facts, decades_of
from node_fit.fitting.resolve import resolve

LOGARITHMIC = np.concatenate([[0.0], np.geomspace(1e-5, 1e5, 51)])


def table_of(ts: np.ndarray) -> nf.Dataset:
    return nf.Dataset.from_arrays(ts, np.exp(-ts)[:, None], states=["x"])


def choose_for(ts: np.ndarray, **options) -> tuple[nf.Options, dict[str, object]]:
    """The options that are chosen for rows at these times, and the choices by key."""
    plan = resolve(nf.Options(**options), Facts.of(table_of(ts)))
    return plan.options, {choice.key: choice.value for choice in plan.choices}


@pytest.mark.parametrize(
    ("ts", "decades"),
    [
        (LOGARITHMIC, 10.2),
        (np.geomspace(1e-4, 1e3, 40), 7.3),
        (np.arange(40_000.0), 0),
        (np.concatenate([np.arange(100.0), 1e6 + np.arange(100.0)]), 0),  # A gap.
        (np.sort(np.random.default_rng(0).uniform(0, 1, 300)), 0),
        (np.geomspace(1, 100, 30), 0),
        (np.concatenate([[0, 1e-9], np.linspace(1, 50, 50)]), 0),  # Two rows at nearly the same time.
    ],
)
def test_rows_span_decades_where_many_intervals_are_far_shorter_than_the_record(ts, decades):
    padded = np.concatenate([ts, np.full(3, ts[-1])])
    assert decades_of(padded) == decades_of(ts) == pytest.approx(decades, abs=0.2)


def test_a_network_sees_the_logarithm_of_time():
    options, choices = choose_for(LOGARITHMIC)
    assert options.field.func is nf.LogTimeMLP
    assert options.field.keywords == {"shortest": pytest.approx(5.85e-6, rel=0.01)}
    assert (options.solver.method, options.solver.stepping) == ("tsit5", "adaptive")
    assert choices == {"field": "log_time", "solver.stepping": "adaptive"}


@pytest.mark.parametrize(
    "field", ["linear", "sparse", functools.partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 1.0})]
)
def test_other_fields_are_solved_by_an_implicit_method(field):
    options, choices = choose_for(LOGARITHMIC, field=field)
    assert options.solver.method == choices["solver.method"] == "kvaerno5"


def test_what_was_asked_for_stays():
    field = functools.partial(nf.MLP, width=8)
    options, choices = choose_for(LOGARITHMIC, field=field, solver="kvaerno3")
    assert options.field is field and options.solver.method == "kvaerno3" and not choices
    assert choose_for(np.linspace(0, 1, 52))[0].field is nf.MLP


def test_no_spline_is_differentiated_over_decades_of_time():
    options, _ = choose_for(LOGARITHMIC, field="linear")
    model = nf.make_model(table_of(LOGARITHMIC), field="linear", key=jax.random.key(0))
    reason = nf.DerivativeMatching().why_not(model, Facts.of(table_of(LOGARITHMIC)))
    assert reason is not None and "decades" in reason and options.recipe is not None


def test_a_constant_network_moves_states_with_the_logarithm_of_time():
    data = table_of(LOGARITHMIC)
    field = functools.partial(nf.LogTimeMLP, shortest=1e-5)
    options, _ = choose_for(LOGARITHMIC)
    model = nf.make_model(data, field=field, solver=options.solver, key=jax.random.key(0))
    last = model.field.network.layers[-1]
    constant = (last.weight * 0, last.bias * 0 + 0.1)
    model = eqx.tree_at(lambda m: (m.field.network.layers[-1].weight, m.field.network.layers[-1].bias), model, constant)
    moved = np.diff(model.scaler.scale_states(model.predict(data))[0, :, 0])
    logarithms = np.log1p(LOGARITHMIC / 1e-5) / 4
    np.testing.assert_allclose(moved, 0.1 * np.diff(logarithms), rtol=1e-3, atol=1e-5)


def test_the_shortest_interval_must_be_positive():
    with pytest.raises(ValueError, match="shortest must be positive"):
        nf.make_model(
            table_of(LOGARITHMIC), field=functools.partial(nf.LogTimeMLP, shortest=0.0), key=jax.random.key(0)
        )
