"""Beginnings of fits of known equations: constants and hidden starts that simulate the data best."""

import functools

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.fitting.screening import Size, beginnings_at, choose_beginnings, has_beginnings, simulation_losses
from node_fit.minimize import restarts
from node_fit.model.initial_state.rule import First
from node_fit.model.initial_state.trained import Fitted
from node_fit.model.make_model import make_model
from node_fit.runtime.placement import carry

pytestmark = pytest.mark.slow


EQUATIONS = {"x": "a*x - b*x*z", "z": "-m*z + d*x*z"}
TRUE = {"a": 0.55, "b": 0.028, "m": 0.84, "d": 0.026}


def prey(noise=0.0, rows=81):
    """Prey that hidden predators hunt (Lotka and Volterra), and their true numbers."""

    def rates(t, y):
        return [TRUE["a"] * y[0] - TRUE["b"] * y[0] * y[1], -TRUE["m"] * y[1] + TRUE["d"] * y[0] * y[1]]

    ts = np.linspace(0, 20, rows)
    ys = solve_ivp(rates, (0, 20), [30, 4], t_eval=ts, rtol=1e-9, atol=1e-9).y[0]
    noisy = ys + noise * ys.std() * np.random.default_rng(0).normal(size=rows)
    return nf.Dataset.from_arrays(ts, noisy[:, None], states=("x",)), ys


def model_of(data, constants, start=First, **scaling):
    field = functools.partial(nf.Known, equations=EQUATIONS, constants=constants)
    return make_model(
        data,
        field=field,
        hidden=["z"],
        start=start,
        scaling=nf.Scaling(**scaling),
        solver=nf.Solver().for_data(),
        key=jax.random.key(0),
    )


@pytest.mark.parametrize("start", [First, Fitted])
@pytest.mark.parametrize("bounds", [(None, None), (0.0, None), (0.0, 50.0)])
def test_a_beginning_has_the_constants_and_the_hidden_start_that_it_says(start, bounds):
    data, _ = prey()
    model = model_of(data, TRUE, start, bounds={} if bounds == (None, None) else {"z": bounds})
    shares = np.array([0.5, 0.75, 0.25, 1.0, 0.75, 0.6])
    begun = beginnings_at(model, Size(100.0, signed=False), shares)(model)
    expected = {"a": 0.55, "b": 0.28, "m": 0.084, "d": 2.6}
    assert begun.constants() == pytest.approx(expected, rel=1e-5)
    batch = carry(model.batch(data), np.float32)
    first = model.system.scaler.unscale_states(np.asarray(begun.first_states(batch)))[0]
    hidden = 0.01 * 50 + 0.98 * 50 * 0.6 if bounds[1] else 100 * 100**0.2
    # Only a rule that fits the starts of measured states moves them, by a tenth of a standard deviation here.
    moved = 30 + 0.1 * float(data.ys.std()) * (start is Fitted)
    assert first[0] == pytest.approx(moved, rel=1e-4) and first[1] == pytest.approx(hidden, rel=1e-4)


def test_hidden_starts_have_both_signs_where_the_data_do():
    data, _ = prey()
    model = model_of(data, TRUE)
    shares = np.full((5, 6), 0.5)
    shares[:, 5] = [0.0, 0.25, 0.49, 0.75, 1.0]
    starts = beginnings_at(model, Size(10.0, signed=True), shares).start[:, 1]
    assert starts == pytest.approx([-1000, -10, -10 * 100 ** (2 * 0.02 - 1), 10, 1000], rel=1e-6)


def test_predictions_beyond_limits_are_no_errors():
    data, _ = prey()
    share = 0.5 + 0.25 * np.log10(4 / 100)  # The hidden state starts at 4.
    shares = np.array([[0.5, 0.5, 0.5, 0.5, 0.5, share]])

    def loss(data):
        model = model_of(data, TRUE)
        some = carry(beginnings_at(model, Size(100.0, signed=False), shares), np.float32)
        return float(simulation_losses(*carry((model,), np.float32), some, carry(model.batch(data), np.float32))[0])

    cut = nf.Dataset.from_arrays(data.ts[0], np.clip(data.ys[0], 10, 40), states=("x",))
    assert loss(cut.clip({"x": (10, 40)})) < 1e-4 < 0.1 < loss(cut)


@pytest.mark.long
def test_the_best_beginnings_fit_better_than_the_given_constants(monkeypatch):
    monkeypatch.setattr(restarts, "POPULATION", restarts.POPULATION // 4)
    data, ys = prey()
    wrong = {"a": 3.0, "b": 0.2, "m": 0.2, "d": 0.1}
    model = model_of(data, wrong)
    found = choose_beginnings(model, data, 3, seed=0)
    errors = [float(np.sqrt(np.mean((begun(model).predict(data)[0, :, 0] - ys) ** 2))) / ys.std() for begun in found]
    assert len(errors) == 3 and errors[0] < 0.7 and errors == sorted(errors)
    monkeypatch.setattr(restarts, "GENERATIONS", 1)
    one, other = (choose_beginnings(model, data, 1, seed=0)[0].start for _ in range(2))
    assert np.array_equal(one, other, equal_nan=True)


def test_a_search_ends_in_time_and_can_be_ended_at_any_moment(small_search, monkeypatch):
    data, _ = prey()
    model, said = model_of(data, TRUE), []
    monkeypatch.setattr(restarts, "MOST_SECONDS", 0.0)
    found = choose_beginnings(model, data, 3, 0, said.append)
    assert len(found) == 3 and len(said) == 1, "one piece of a generation is simulated, whatever it takes"
    assert said[0].startswith("several starts: generation 1 of 21, 0 s in all")
    monkeypatch.setattr(restarts, "MOST_SECONDS", 60.0)

    def interrupt(what: str) -> None:
        said.append(what)
        if len(said) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choose_beginnings(model, data, 3, 0, interrupt)
    assert said[-1].startswith("several starts: generation 1 of"), "within a generation"


def test_a_network_has_no_other_beginnings():
    data, _ = prey()
    assert has_beginnings(model_of(data, TRUE))
    assert not has_beginnings(make_model(data, key=jax.random.key(0)))


@pytest.mark.long
def test_hidden_predators_are_found_from_constants_that_are_far_off(small_search):
    data, ys = prey(noise=0.03)
    field = nf.Known(equations=EQUATIONS, constants={"a": 3.0, "b": 0.2, "m": 0.2, "d": 0.1})
    fit = nf.fit(data, field=field, hidden=["z"], progress=False)
    assert [each.name for each in fit.attempts] == ["as chosen", "several starts"]
    # The scale of predators that nobody counted is not determined, and so b is not.
    assert {name: fit.constants[name] for name in "amd"} == pytest.approx({n: TRUE[n] for n in "amd"}, rel=0.05)
    assert np.sqrt(np.mean((fit.predict(data)[0, :, 0] - ys) ** 2)) < 0.03 * ys.std()
