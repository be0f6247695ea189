"""Whether a model stays near the data between the trajectories that it was fitted to."""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.attempts import beats, race_of
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.evaluation.diagnosis import Diagnosis
from node_fit.evaluation.stability import Escape
from node_fit.fitting import judge, race
from node_fit.fitting.between import runs_away, trajectories_between

TS = np.linspace(0, 4, 9)
DOSES = np.array([0.0, 1.0, 3.0])


class Bump(eqx.Module):
    """A decay, to which a dose near one that was not given adds much."""

    at: float
    high: float = 20.0

    def __call__(self, t, y, u):
        return -y + self.high * jnp.exp(-(((u[0] - self.at) / 0.2) ** 2))


def responses(**more) -> nf.Dataset:
    """Decays from starts of 1 to 3, each at a dose of its own."""
    ys = (1 + DOSES[:, None] / 2) * np.exp(-TS)
    us = np.repeat(DOSES[:, None], TS.size, axis=1)
    return nf.Dataset.from_arrays(TS, ys[..., None], us[..., None], states=["x"], inputs=["dose"], **more)


def model_of(field: eqx.Module, data: nf.Dataset) -> nf.NeuralODE:
    return nf.make_model(data, field=field, scaling=nf.Scaling(affine=False), key=jax.random.key(0))


def test_inputs_and_starts_lie_between_those_of_each_two():
    probes = trajectories_between(responses())
    assert len(probes) == 9
    np.testing.assert_allclose(sorted(probes.us[:, 0, 0]), [0.25, 0.5, 0.75, 0.75, 1.5, 1.5, 2, 2.25, 2.5])
    np.testing.assert_allclose(probes.ys[:, 0, 0], 1 + probes.us[:, 0, 0] / 2)
    assert (probes.us == probes.us[:, :1]).all()


@pytest.mark.parametrize(("at", "away"), [(0.5, True), (1.5, True), (30.0, False)])
def test_a_model_that_leaves_the_data_between_doses_runs_away(at, away):
    data = responses()
    assert runs_away(model_of(Bump(at), data), data) is away


def test_nothing_is_between_words():
    data = responses()
    data = dataclasses.replace(data, us=np.round(data.us / 3 * 2), levels={"dose": ("none", "some", "much")})
    model = model_of(Bump(0.5), data)
    assert not runs_away(model, data) and runs_away(model, dataclasses.replace(data, levels={}))


def test_a_model_that_can_not_be_simulated_runs_away():
    data = responses()
    assert runs_away(model_of(Bump(0.5, math.inf), data), data)


def test_nothing_is_between_few_or_driven_trajectories():
    data = responses()
    assert trajectories_between(data.select([0, 1])) is None
    driven = dataclasses.replace(data, us=data.us + np.sin(TS)[:, None])
    assert trajectories_between(driven) is None
    assert not runs_away(model_of(Bump(0.5), driven), driven)
    many = data.select(np.arange(20) % 3)
    assert trajectories_between(many) is None


def test_what_runs_away_is_kept_only_where_all_do():
    """A good fit that runs away does not end the search, either."""
    data = responses()
    model = model_of(Bump(0.5), data)
    options = nf.Options(field="linear", hidden=0)
    fit = nf.Fit(model, "completed", "took all steps", [], 0, 1, 0, 0, 0.0, 0.0, data={"train": data}, options=options)
    lost = judge.judge_attempt("linear", fit, None)
    assert lost.runs_away
    lost = dataclasses.replace(
        lost, attempt=dataclasses.replace(lost.attempt, verdict="good"), is_worse_than_mean=False
    )
    stays = dataclasses.replace(lost, runs_away=False, error=9.0)
    assert beats(stays, lost) and not beats(lost, stays)
    assert race.wants_more(race_of(lost, options=options)) and not race.wants_more(race_of(stays, options=options))
    assert race.why_more(lost) == "linear runs away between the trajectories"


def test_what_runs_away_in_longer_simulations_is_kept_only_where_all_do(monkeypatch):
    """The verdict at the end would say it, when nothing else is tried any more."""
    data = responses()
    model = model_of(Bump(30.0), data)
    options = nf.Options(field="linear", hidden=0)
    fit = nf.Fit(model, "completed", "took all steps", [], 0, 1, 0, 0, 0.0, 0.0, data={"train": data}, options=options)
    assert not judge.judge_attempt("linear", fit, None).runs_away
    monkeypatch.setattr("node_fit.evaluation.diagnosis.RULES", (lambda case: Diagnosis("good", "good."),))
    monkeypatch.setattr(nf.Fit, "find_escape", lambda self, train: Escape("y", 1e6, 0.0, 1.0))
    away = judge.judge_attempt("linear", fit, None)
    assert away.runs_away and away.attempt.verdict == "unstable"
    assert not judge.judge_attempt("linear", fit, 5).runs_away, "of windows nothing longer is asked"


def test_equations_start_between_trajectories_at_their_first_rows():
    """A pendulum's curve shifted by a third of a turn would need a speed that takes it over the top."""
    ts, starts = 0.08 * np.arange(80), np.array([2.2, 1.0, -1.6])

    def rates(t, y):
        return [y[1], -4 * np.sin(y[0]) - 0.3 * y[1]]

    ys = np.stack([solve_ivp(rates, (0, ts[-1]), [start, 0], t_eval=ts).y[0] for start in starts])
    data = nf.Dataset.from_arrays(ts, ys[..., None], states=("q",))
    model = nf.make_model(
        data,
        field=functools.partial(nf.Known, equations={"q": "v", "v": "-4*sin(q) - 0.3*v"}, constants={}),
        hidden=("v",),
        start=functools.partial(nf.Fitted, given=20),
        key=jax.random.key(0),
    )
    assert not runs_away(model, data)
