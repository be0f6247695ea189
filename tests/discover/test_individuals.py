"""Equations with constants of each trajectory, where the same constants do not describe all."""

import logging

import numpy as np
import pytest

import node_fit as nf
from node_fit.discover.individuals import FEWEST_ALIKE, Individuals, fit_individuals
from node_fit.discover.search import smooth_records
from node_fit.discover.watch import TimeIsUp
from node_fit.fitting import race

RATES = np.array([0.4, 0.5, 0.6, 0.7, 0.8])
NAMES = (["x"], [])


def decays(rates=RATES, rows=25, noise=0.01):
    t = np.linspace(0, 5, rows)
    ys = 3 * np.exp(-np.asarray(rates)[:, None] * t)
    return nf.Dataset.from_arrays(
        t, (ys + noise * np.random.default_rng(0).normal(size=ys.shape))[..., None], states=["x"]
    )


def test_each_trajectory_gets_constants_of_its_own():
    found = fit_individuals(smooth_records(decays(), 1.0, ()), NAMES, [{"x": "-0.6*x"}])
    assert found.equations == {"x": "-c1*x"} and found.varying == found.constants
    np.testing.assert_allclose(found.constants["c1"], RATES, rtol=0.02)
    assert found.explained > 0.99
    assert found.keys == "field=known 'field.equations={x: \"-c1*x\"}' 'random={c1: lognormal}'"


@pytest.mark.parametrize(
    ("rates", "equation"),
    [
        (RATES, "-0.6*x + 0.1*x**2 - 0.1*x**3"),  # So many constants can follow an unmeasured state.
        (RATES, "-0.6"),  # It describes none.
        (RATES[:3], "-0.6*sqrt(x)"),  # It leaves more than noise.
        (np.full(5, 0.6), "-0.6*x"),  # The same constant serves all.
    ],
)
def test_no_equation_is_named_without_need(rates, equation):
    assert fit_individuals(smooth_records(decays(rates), 1.0, ()), NAMES, [{"x": equation}]) is None


def test_of_two_equations_the_more_probable_is_named():
    systems = [{"x": "-0.6*x - 0.01*x**2"}, {"x": "-0.6*x"}]
    assert fit_individuals(smooth_records(decays(), 1.0, ()), NAMES, systems).equations == {"x": "-c1*x"}


def test_constants_of_both_signs_are_normal():
    found = Individuals({"x": "c1 - c2*x"}, {"c1": [-0.1, 0.2], "c2": [1.0, 1.001]}, 0.99)
    assert found.varying == {"c1": [-0.1, 0.2]} and "'random={c1: normal}'" in found.keys
    assert "c1 from -0.1 to 0.2" in str(found) and "c2 from" not in str(found) and found.keys in found.advice


def test_discover_names_equations_that_differ_in_constants():
    found = nf.discover(decays(), symbolic=False, resamples=0)
    assert not found.explained and found.individuals.equations == {"x": "-c1*x"} and found.verdict == str(found)
    few = nf.discover(decays(RATES[: FEWEST_ALIKE - 1]), symbolic=False, resamples=0)
    assert few.individuals is None
    data = decays()
    driven = nf.Dataset.from_arrays(data.ts, data.ys, np.sin(data.ts)[..., None], states=["x"], inputs=["u"])
    assert nf.discover(driven, symbolic=False, resamples=0).individuals is None
    shared = nf.discover(decays(np.full(5, 0.6)), symbolic=False, resamples=0)
    assert shared.individuals is None and shared.explained


@pytest.mark.parametrize("end", [KeyboardInterrupt, TimeIsUp])
def test_a_search_that_ends_early_keeps_what_was_found(end):
    def tell(what):
        if what.startswith("equations of one trajectory"):
            raise end

    found = nf.discover(decays(), symbolic=False, resamples=0, tell=tell)
    assert found.individuals is None and found.ranked and found.interrupted is (end is KeyboardInterrupt)


@pytest.mark.slow
def test_a_fit_advises_constants_of_each_trajectory(monkeypatch, caplog):
    """After the search, the network of a short record is poor: nothing tells it the constants of other trajectories."""
    monkeypatch.setattr(race, "candidates_of", lambda race: ())
    t = np.linspace(0, 10, 25)
    rates, capacities = np.exp(0.3 * np.random.default_rng(1).normal(size=(2, 8)))[..., None]
    ys = capacities / (1 + (capacities / 0.05 - 1) * np.exp(-rates * t))
    ys += 0.005 * np.random.default_rng(2).normal(size=ys.shape)
    data = nf.Dataset.from_arrays(t, ys[..., None], states=["x"])
    with caplog.at_level(logging.WARNING):
        train, validation, _ = data.split(test=0)
        fit = nf.fit(train, validation=validation, progress=False)
    assert "With constants of its own, each follows dx/dt = c1*x - c2*x**2 (at least 99.9 %" in caplog.text
    assert fit.individuals.equations == {"x": "c1*x - c2*x**2"}
    assert fit.individuals.advice in fit.assess().verdict.sentence
