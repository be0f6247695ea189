"""Where a fit is not good, or rows are few, other ways are tried: polynomials, windows that grow, windows of chaos."""

import functools
import shutil
import signal
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.attempts import beats, race_of
from helpers.commands import begun, node_fit, read_summary, read_table, until
from helpers.problems import fit_to, rotation
from scipy.integrate import solve_ivp
from scipy.signal import lfilter

import node_fit as nf
from node_fit.app.console import attempt_lines
from node_fit.discover.search import Vocabulary, search_field
from node_fit.evaluation.diagnosis import FITS
from node_fit.fitting import candidates, judge, race
from node_fit.fitting.relevance import log_evidence, thin_out
from node_fit.fitting.resolve import Choice
from node_fit.options.recipes import growing_windows

pytestmark = pytest.mark.slow

FEW = 50


def van_der_pol(t, y):
    return [y[1], 0.5 * (1 - y[0] ** 2) * y[1] - y[0]]


def lorenz(t, y):
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def solved(rates, start, ts):
    return solve_ivp(rates, (0, ts[-1]), start, t_eval=ts, rtol=1e-9, atol=1e-9).y.T


def oscillator(draw=1):
    """Noisy rows of van der Pol's oscillator, and what comes after them."""
    ts = np.linspace(0, 14, 2 * FEW)
    ys = solved(van_der_pol, (-1.5, 2.5), ts)
    noisy = ys[:FEW] + np.random.default_rng(draw).normal(size=(FEW, 2)) * 0.05**0.5
    return nf.Dataset.from_arrays(ts[:FEW], noisy, states=("x", "y")), ts, ys


@pytest.fixture(scope="module")
def climbed():
    """What is found where a user wants no equations."""
    train, _, _ = oscillator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "Sparse", None)
        return nf.fit(train, progress=False, options=nf.Options(discover=False))


def forecast_error(model, train, ts, ys):
    return float(np.mean((model.predict(train, ts[None])[0, FEW:] - ys[FEW:]) ** 2))


def test_few_noisy_rows_get_equations_that_forecast():
    """Nothing else is tried once equations leave nothing but noise."""
    train, ts, ys = oscillator()
    fit = nf.fit(train, progress=False)
    assert [(each.name, each.kept) for each in fit.attempts] == [("equations", True)]
    assert forecast_error(fit.model, train, ts, ys) < 0.05
    assert set(fit.equations) == {"x", "y"} and str(fit.choices[0]).startswith("field=sparse: found an equation")


@pytest.mark.long
def test_no_equations_are_tried_where_a_user_wants_none(climbed, monkeypatch):
    """Neither of few noisy rows nor where the first fit is good."""
    monkeypatch.setattr(candidates, "Sparse", None)
    good = nf.fit(rotation(), progress=False, options=nf.Options(discover=False))
    names = [each.name for each in climbed.attempts]
    assert "cubic" in names and "equations" not in {*names, *(each.name for each in good.attempts)}


@pytest.mark.long
def test_noisy_trajectories_get_starts_that_are_fitted():
    """Read from single rows, starts bias the constants: their noise would have to be a motion of the system."""
    ts, rng = np.linspace(0, 6, 30), np.random.default_rng(3)
    phases, sizes = rng.uniform(0, 2 * np.pi, 16), rng.uniform(0.5, 2, 16)
    decays = (sizes * np.exp(-0.15 * ts[:, None])).T
    xs = decays * np.cos(1.5 * ts + phases[:, None])
    ys = np.stack([xs, -1.5 * decays * np.sin(1.5 * ts + phases[:, None]) - 0.15 * xs], axis=-1)
    train = nf.Dataset.from_arrays(ts, ys + 0.1 * rng.normal(size=ys.shape), states=("x", "v"))
    sparse = functools.partial(nf.Sparse, libraries=("linear", "quadratic"))
    fit = nf.fit(train, field=sparse, progress=False)
    assert isinstance(fit.model.start, nf.Fitted)
    read = nf.fit(train, field=sparse, start=nf.First, progress=False)
    fitted, first = (np.sqrt(np.mean((each.predict(train) - ys) ** 2)) for each in (fit, read))
    assert fitted < 0.04 and fitted < 0.7 * first
    np.testing.assert_allclose(list(fit.constants.values()), [1, -2.2725, -0.3], atol=0.05)


@pytest.mark.long
def test_sparse_equations_are_a_field():
    train, ts, ys = oscillator()
    fit = nf.fit(train, field="sparse", progress=False)
    assert forecast_error(fit.model, train, ts, ys) < 0.05
    with pytest.raises(ValueError, match="field=sparse needs measurements of all states; leave out hidden"):
        nf.fit(train, field="sparse", hidden=1, progress=False)
    noise = nf.Dataset.from_arrays(ts, np.random.default_rng(0).normal(size=(len(ts), 2)))
    with pytest.raises(ValueError, match="field=sparse: no equation of these terms explains the record"):
        nf.fit(noise, field=functools.partial(nf.Sparse, effort="quick"), progress=False)
    with pytest.raises(ValueError, match=r"pass field=node_fit\.Sparse to node_fit\.fit"):
        nf.make_model(train, field=nf.Sparse, key=jax.random.key(0))


@pytest.mark.long
def test_few_noisy_rows_get_a_polynomial_that_forecasts(climbed):
    train, ts, ys = oscillator()
    assert [each.name for each in climbed.attempts if each.kept] == ["cubic"]
    assert forecast_error(climbed.model, train, ts, ys) < 0.05
    first = nf.fit(train, progress=False, options=nf.Options(effort="quick"))
    assert first.attempts == () and forecast_error(first.model, train, ts, ys) > 0.2


@pytest.mark.long
def test_coefficients_that_the_data_do_not_ask_for_are_zero(climbed):
    """The equation has two terms beyond the linear ones; a fit with one prior for all has all fourteen."""
    field = climbed.model.typical.field
    weight = np.asarray(field.weight)
    assert (np.abs(weight) < 1e-6).sum() >= 8
    kept = dict(zip(field.exponents, weight[1], strict=True))
    assert abs(kept[2, 1]) == max(abs(each) for each in kept.values())


@pytest.mark.long
def test_the_choice_is_told(climbed):
    (told,) = (choice for choice in climbed.choices if choice.key == "attempt")
    assert told.value == "cubic" and "as chosen: noise-limited" in told.reason


@pytest.mark.long
def test_equations_of_a_polynomial_are_its_rates(climbed):
    """In the user's units, as text that others can evaluate."""
    model, y = climbed.model.typical, jnp.array([1.3, -0.4])
    rates = model.vector_field(0.0, y)
    for rate, text in zip(rates, climbed.equations.values(), strict=True):
        found = eval(text.replace("^", "**"), {"x": 1.3, "y": -0.4})
        np.testing.assert_allclose(found, rate, rtol=1e-3, atol=1e-3)


def test_a_polynomial_counts_its_monomials():
    field = nf.Polynomial(2, 1, degree=3, key=jax.random.key(0))
    assert len(set(field.exponents)) == len(field.exponents) == 16
    assert {sum(each) for each in field.exponents} == {2, 3}
    with pytest.raises(ValueError, match="degree must be from 2 to 7, got 1"):
        nf.Polynomial(2, degree=1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="has 230,209 monomials"):
        nf.Polynomial(20, degree=6, key=jax.random.key(0))


@pytest.mark.long
def test_a_polynomial_is_stored(climbed, tmp_path):
    train, _, _ = oscillator()
    climbed.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(nf.load(tmp_path / "m.safetensors").predict(train), climbed.predict(train))


def test_the_evidence_is_that_of_a_linear_model_in_closed_form():
    """A field of constants only moves straight on, so that the data are linear in its parameters."""
    ts, rng = np.linspace(0, 1, 20), np.random.default_rng(0)
    data = nf.Dataset.from_arrays(ts, (2 * ts + rng.normal(size=20) * 0.1)[:, None], states=("x",))
    shared = nf.Options(
        field=nf.Polynomial(degree=2),
        start=nf.Fitted,
        optimizer=nf.LevenbergMarquardt(),
        recipe="direct",
        training=nf.Training(steps=50, freeze=["field.path.layer.weight"]),
        precision="x64",
    )
    fits = {
        ridge: nf.fit(data, progress=False, options=replace(shared, penalty=nf.Penalty(ridge=ridge)))
        for ridge in (1e-2, 1e4)
    }
    for fit in fits.values():
        best, x = fit.evidence.best, fit.evidence.x
        value = (best.residuals**2).sum() + (best.prior * x**2).sum()
        design = best.jacobian
        variance = value / fit.evidence.values
        marginal = design[:, best.prior > 0] @ np.diag(1 / best.prior[best.prior > 0]) @ design[:, best.prior > 0].T
        covariance = np.eye(len(design)) + marginal
        flat = design[:, best.prior == 0]
        inner = flat.T @ np.linalg.solve(covariance, flat)
        expected = -np.linalg.slogdet(covariance)[1] / 2 - np.linalg.slogdet(inner)[1] / 2
        expected -= fit.evidence.values / 2 * np.log(variance)
        np.testing.assert_allclose(log_evidence(fit.evidence), expected, rtol=1e-4)


def test_only_a_polynomial_is_thinned():
    train = rotation(trajectories=1)
    fit = nf.fit(train, field=nf.Linear, optimizer=nf.LevenbergMarquardt(), progress=False)
    with pytest.raises(ValueError, match="only a polynomial"):
        thin_out(fit.evidence)


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        {"effort": "quick"},
        {"training": nf.Training(steps=20)},
        {"recipe": "direct"},
        {"optimizer": nf.LevenbergMarquardt()},
        {"ensemble": 2},
    ],
    ids=lambda given: next(iter(given)),
)
def test_nothing_else_is_tried_where_a_user_says_how_to_train(given):
    train, _, _ = oscillator()
    fit = fit_to(train, progress=False, **({"training": nf.Training(steps=20)} | given))
    assert fit.attempts == ()


@pytest.mark.long
def test_chaos_is_forecast_in_windows():
    ts = np.arange(1600) * 0.02
    # A start on the attractor, in digits: a longer record would differ from one processor to the next.
    ys = solved(lorenz, (-4.9, -3.74, 24.69), ts)
    ys = ys + np.random.default_rng(0).normal(size=ys.shape) * 0.01 * ys.std(axis=0)
    train, validation = (
        nf.Dataset.from_arrays(ts[part], ys[part], states=("x", "y", "z")) for part in (slice(1200), slice(1200, 1600))
    )
    fit = nf.fit(train, validation=validation, progress=False)
    assert fit.horizon == 50
    assert fit.score(train.windows(50, 50)).nrmse < 0.05
    assert fit.score(validation.windows(50, 50)).nrmse < 0.05
    assert fit.score(train).r2 < 0.9  # No model could say the phase after so long.
    chaos = fit.score_chaos(train, validation)
    assert chaos.valid_lyapunov_times > 1 and chaos.lyapunov_time == pytest.approx(1 / 0.906, rel=0.15)


@pytest.mark.long
def test_states_that_nobody_measured_are_found_without_inputs(monkeypatch):
    """Of the position alone, no first-order equation oscillates; the rows before a start tell of the speed."""
    monkeypatch.setattr(race, "candidates_of", lambda _: [candidates.AFTER_PAST_ROWS])
    ts = np.arange(260) * 0.15
    xs = solved(van_der_pol, (0.5, 0.0), ts)[:, :1]
    noisy = xs + 0.03 * np.random.default_rng(0).normal(size=xs.shape)
    train, validation = (nf.Dataset.from_arrays(ts[part], noisy[part]) for part in (slice(200), slice(200, 260)))
    fit = nf.fit(train, validation=validation, progress=False)
    assert [(each.name, each.kept) for each in fit.attempts] == [("as chosen", False), (candidates.PAST_ROWS, True)]
    assert fit.attempts[0].verdict == "flat" and fit.attempts[1].verdict in FITS
    assert len(fit.model.hidden) == 1 and max(fit.score(data).nrmse for data in (train, validation)) < 0.2


def judged(fit, name=candidates.FIRST_ATTEMPT, verdict="good", train=0.1, validation=None, evidence=None):
    error = max(train, validation or 0.0)
    return judge.Judged(fit, judge.Attempt(name, verdict, train, validation, evidence, None, 1.0), error)


@pytest.fixture(scope="module")
def first():
    return nf.fit(rotation(), training=nf.Training(steps=5), progress=False, options=nf.Options(effort="quick"))


def effects_of_doses(count, seed=0):
    """Few noisy rows after doses that pass a compartment which nobody measured; the dose is an input."""
    rng, ts = np.random.default_rng(seed), np.linspace(0, 5, 16)
    doses = rng.uniform(1, 5, count)
    ys = doses[:, None] * (np.exp(-0.5 * ts) - np.exp(-1.2 * ts)) + 0.02 * rng.normal(size=(count, 16))
    us = np.repeat(doses, 16).reshape(count, 16, 1)
    return nf.Dataset.from_arrays(np.tile(ts, (count, 1)), ys[..., None], us, states=["effect"], inputs=["dose"])


@pytest.mark.long
def test_a_hidden_state_is_tried_where_no_field_of_what_is_measured_fits(monkeypatch):
    """All rise from 0, and fall through the same values: the measured state alone does not tell which way it goes."""
    rows = {
        kind: tuple(row for row in rows if row is not candidates.POSITIONS)
        for kind, rows in candidates.CANDIDATES_BY_KIND.items()
    }
    monkeypatch.setattr(candidates, "CANDIDATES_BY_KIND", rows)
    splits = effects_of_doses(10).split(test=0.0)
    found = nf.fit(splits.train, validation=splits.validation, progress=False, options=nf.Options(discover=False))
    assert [each.name for each in found.attempts] == ["as chosen", "hidden state, fitted starts"]
    assert found.attempts[0].train > 0.4 and found.attempts[1].kept and judge.count_hidden(found) == 1
    assert found.score(effects_of_doses(4, seed=1)).nrmse < 0.06


def test_of_few_rows_a_good_fit_with_an_evidence_is_better_than_one_without(first):
    wide, likely = judged(first, train=0.1), judged(first, train=0.2, evidence=30.0)
    assert beats(likely, wide) and not beats(wide, likely)
    assert beats(judged(first, evidence=32.0), likely) and not beats(judged(first, evidence=30.5), likely)
    flat = judged(first, train=0.9, verdict="flat", evidence=30.0)
    assert not beats(flat, replace(wide, error=0.5))


def test_weights_count_where_nothing_is_held_out(first):
    """Of two good fits, the one with few weights is kept, unless the other has a much smaller error."""
    few = judged(replace(first, parameters=10), train=0.004)
    values = first.data["train"].mask.sum()
    # Of n values, each weight has to lower the error by the factor n^(1 / 2n).
    worth = 0.004 * values ** (-100 / (2 * values))
    for factor, is_worth in ((0.9, True), (1.1, False)):
        many = judged(replace(first, parameters=110), train=factor * worth)
        assert beats(many, few) == is_worth and beats(few, many) != is_worth
    poor = judged(replace(first, parameters=10), train=0.4, verdict="poor")
    assert beats(judged(replace(first, parameters=110), train=0.39), poor)
    held = {"train": first.data["train"], "validation": first.data["train"]}
    few, many = (judged(replace(first, parameters=n, data=held), train=e) for n, e in ((10, 0.004), (110, 0.003)))
    assert beats(many, few) and not beats(few, many)


def test_a_network_that_fits_well_is_tried_small_beside_a_linear_path():
    """A damped oscillation from a larger start, of which the large network has seen nothing."""
    ts = np.linspace(0, 12, 160)
    rates = lambda t, y: [y[1], -1.4 * y[0] - 0.25 * y[1]]  # noqa: E731
    near, far = (solved(rates, start, ts) for start in ((1.0, 0.0), (2.0, -1.5)))
    train, other = (nf.Dataset.from_arrays(ts, ys, states=("x", "v")) for ys in (near, far))
    fit = nf.fit(train, progress=False, options=nf.Options(discover=False))
    assert [(each.name, each.kept) for each in fit.attempts] == [("as chosen", False), (candidates.BESIDE_LINEAR, True)]
    quick = nf.fit(train, progress=False, options=nf.Options(effort="quick"))
    assert fit.parameters < quick.parameters / 20
    assert fit.score(other).r2 > 0.999 and quick.score(other).r2 < 0.9


@pytest.mark.parametrize(
    ("errors", "stronger"), [([(0.1, 0.5)], True), ([(0.1, 0.12)], False), ([(0.1, 0.5), (0.3, 0.4)], None)]
)
def test_the_prior_is_stronger_where_a_network_overfits_and_weaker_where_none_did(first, errors, stronger):
    options = nf.Options()
    grown = candidates.grow_windows(race_of(judged(first)))
    fit = replace(first, options=replace(grown, hidden=0))
    tried = [judged(first), *(judged(fit, candidates.GROWING, train=train, validation=held) for train, held in errors)]
    for which, factor in ((True, candidates.STRONGER_PRIOR), (False, candidates.WEAKER_PRIOR)):
        found = candidates.grow_windows_again(race_of(*tried), stronger=which)
        if which is stronger:
            assert found.penalty.ridge == pytest.approx(factor * grown.penalty.ridge)
            assert found.recipe == grown.recipe
        else:
            assert found is None
    given = replace(options, penalty=nf.Penalty(ridge=0.1))
    assert candidates.grow_windows_again(race_of(*tried, options=given), stronger=True) is None


def test_a_good_network_of_few_variables_is_compared_with_equations(first):
    """Equations that are about as good on validation data are kept, since they hold from other starts, too."""
    first = replace(first, data={"train": rotation(times=60)})
    network = judged(first)
    assert race.wants_more(race_of(network))
    for found in (judged(first, judge.SPARSE_EQUATIONS), judged(first, "linear")):
        assert not race.wants_more(race_of(network, found))
    assert not race.wants_more(race_of(network, options=nf.Options(hidden=1)))
    held = replace(first, data={**first.data, "validation": first.data["train"]})
    network, equations = judged(held, validation=0.1), judged(held, judge.SPARSE_EQUATIONS, validation=0.101)
    assert beats(equations, network) and not beats(network, equations)
    assert not beats(replace(equations, error=0.11), network)
    assert not beats(judged(held, "cubic", validation=0.101), network)
    few = replace(held, data={**held.data, "validation": rotation(times=4)})
    assert beats(replace(judged(few, judge.SPARSE_EQUATIONS), error=0.11), network), "within a standard error"
    assert not beats(replace(judged(few, judge.SPARSE_EQUATIONS), error=0.13), network)
    wrong = judged(held, judge.SPARSE_EQUATIONS, verdict="poor", validation=0.101)
    assert not beats(wrong, network)


def test_starts_beside_hidden_states_that_fit_the_training_data_better_are_kept(first, monkeypatch):
    """If they validate as well, up to chance; else some sets of constants and starts fit the same."""
    monkeypatch.setattr(judge, "has_hidden_starts", lambda fit: True)
    held = replace(first, data={**first.data, "validation": rotation(times=12)})
    given = judged(held, train=0.1, validation=0.2)
    for train, validation, better in (
        (0.09, 0.2, True), (0.09, 0.205, True), (0.099, 0.2, False), (0.09, 0.25, False), (0.1, 0.17, True),
    ):  # fmt: skip
        found = judged(held, "several starts", train=train, validation=validation)
        assert beats(found, given) is better, (train, validation)


def test_equations_of_chaos_end_the_search_once_they_are_fitted_to_windows(first):
    whole = judged(replace(first, data={"train": rotation(times=60)}), judge.SPARSE_EQUATIONS)
    whole = replace(whole, attempt=replace(whole.attempt, horizon=20))
    cut = replace(whole, fit=replace(first, data={"train": rotation(times=60).windows(20, 20)}))
    assert race.wants_more(race_of(whole)) and not race.wants_more(race_of(whole, cut))


def test_a_chaotic_record_without_equations_gets_polynomials_and_then_windows(first):
    first = judged(replace(first, data={"train": rotation(times=60)}))
    queue = candidates.candidates_of(race_of(first, horizon=50))
    assert [each.name for each in queue] == [candidates.SPARSE_IN_WINDOWS, "quadratic", "cubic", "windows"]
    quadratic = queue[1].options(race_of(first, horizon=50))
    assert quadratic.field.keywords == {"degree": 2} and quadratic.recipe == nf.Options().recipe
    windows = queue[3].options(race_of(first, options=nf.Options(restarts=3), horizon=50))
    assert windows.field == nf.Options().field and windows.restarts == 1


@pytest.fixture(scope="module")
def driven():
    """A few steps with a long record that an input drives."""
    us = np.repeat(np.random.default_rng(0).normal(size=(60, 1)), 5, axis=0)
    ys = lfilter([0.1], [1, -0.9], us, axis=0)
    train = nf.Dataset.from_arrays(np.arange(300.0), ys, us, states=("y",), inputs=("u",))
    return nf.fit(train, training=nf.Training(steps=2), progress=False, options=nf.Options(effort="quick"))


def test_states_are_added_to_the_model_of_a_driven_record_while_they_help(driven):
    first = judged(driven)
    before = judge.count_hidden(driven)
    found = candidates.add_hidden_states(race_of(first))
    assert found.hidden == before + 2 and found.penalty.ridge == driven.options.penalty.ridge
    more = judged(
        replace(driven, options=replace(driven.options, hidden=before + 2)), candidates.MORE_STATES, train=0.05
    )
    assert candidates.add_hidden_states(race_of(first, more)).hidden == before + 4
    assert candidates.add_hidden_states(race_of(first, replace(more, error=0.2))) is None
    yet = judged(driven, f"yet {candidates.MORE_STATES}", train=0.01)
    assert not race.wants_more(race_of(first, more, yet))
    kept = replace(more, attempt=replace(more.attempt, keys=("hidden",)))
    result = judge.result_of(kept, [first, kept])
    told = {choice.key: choice.value for choice in result.choices}
    assert told["hidden"] == before + 2 and told["attempt"] == candidates.MORE_STATES
    assert not result.has_enough_hidden and not driven.has_enough_hidden
    assert judge.result_of(first, [first, kept]).has_enough_hidden, "which were no better"


def test_what_the_kept_attempt_has_chosen_is_told(driven):
    choices = [Choice("field", "sparse", "dy/dt = -y"), Choice("start", "encoder", "rows before")]
    first = judged(driven).attempt
    found = replace(judged(driven, judge.SPARSE_EQUATIONS).attempt, keys=("field",), kept=True)
    lines = attempt_lines([first, found], choices, None)
    assert (
        lines[-1] == "    field=sparse: dy/dt = -y" and lines[-2].startswith("  * equations: good") and len(lines) == 4
    )
    assert attempt_lines([first], choices, None) == []


@pytest.mark.parametrize(
    ("name", "verdict", "errors"),
    [
        ("linear", "good", {}),
        (candidates.FIRST_ATTEMPT, "noise-limited", {}),
        (candidates.FIRST_ATTEMPT, "good", {"validation": 0.2}),
    ],
)
def test_states_are_not_added_to_other_models_nor_to_what_leaves_noise_or_is_overfitted(driven, name, verdict, errors):
    assert candidates.add_hidden_states(race_of(judged(driven, name, verdict, **errors))) is None
    assert candidates.add_hidden_states(race_of(judged(driven), options=nf.Options(hidden=1))) is None


def test_a_readout_is_tried_where_no_model_does_well_of_which_the_measured_is_a_state(driven):
    options = nf.Options()
    found = candidates.read_by_network(race_of(judged(driven, verdict="poor", train=0.6)))
    assert found.observation is nf.NetworkReadout and found.hidden == 2
    assert candidates.read_by_network(race_of(judged(driven))) is None
    overfitted = judged(driven, verdict="overfitted", train=0.1, validation=0.6)
    assert candidates.read_by_network(race_of(overfitted)) is None
    for given in (replace(options, hidden=1), replace(options, observation=nf.LinearReadout)):
        assert candidates.read_by_network(race_of(judged(driven, verdict="poor", train=0.6), options=given)) is None


@pytest.mark.parametrize("derivatives", [False, True])
def test_windows_grow_up_to_half_a_record(derivatives):
    recipe = growing_windows(rotation(times=300), derivatives=derivatives)
    growing = ["windows of 10", "windows of 25", "windows of 62", "main"]
    assert list(recipe.stages) == (["derivative", *growing] if derivatives else growing)


@pytest.mark.long
def test_an_epidemic_is_found_though_its_end_is_fitted_by_any_that_dies_out(small_search):
    """By-time validation rows, where nobody is infected, validate equations that die out at once."""
    ts = np.linspace(0, 60, 61)
    rates = lambda t, y: [-0.5 * y[0] * y[1] / 1000, 0.5 * y[0] * y[1] / 1000 - 0.15 * y[1]]  # noqa: E731
    infected = solved(rates, [990, 10], ts)[:, 1:]
    data = nf.Dataset.from_arrays(ts, infected, states=("I",))
    train, validation, _ = nf.Split(by="time")(data)
    field = nf.Known(
        equations={"S": "-b*S*I/1000", "I": "b*S*I/1000 - g*I"}, constants={"b": [3.0, 0, None], "g": [0.03, 0, None]}
    )
    fit = nf.fit(train, validation=validation, field=field, hidden=["S"], progress=False)
    assert fit.score(train).nrmse < 0.05 and fit.constants["g"] == pytest.approx(0.15, rel=0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One of the states has too few measurements for a search of equations."""
    folder = tmp_path_factory.mktemp("race")
    train, ts, _ = oscillator()
    measured = enumerate(zip(ts, train.ys[0], strict=False))
    rows = "".join(f"{t:.6g},{x:.9g},{'' if row % 5 else y}\n" for row, (t, (x, y)) in measured)
    (folder / "mine.csv").write_text("t,x,y\n" + rows)
    return folder


COMMAND = ("mine.csv", "data.split.validation=0", "data.split.test=0")


@pytest.mark.long
def test_a_run_that_is_interrupted_between_attempts_ends_as_one_that_was_not(folder):
    whole = node_fit(folder, *COMMAND, "hydra.run.dir=whole")
    assert whole.code == 0, whole
    assert "tried 5 fits:" in whole.out
    process = begun(folder, *COMMAND, "hydra.run.dir=parts")
    second = folder / "parts" / "checkpoints" / "attempt-2"
    until(lambda: any(second.glob("*.safetensors")), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert read_summary(folder / "parts")["status"] == "interrupted"
    shutil.copytree(folder / "parts", folder / "stopped")
    resumed = node_fit(folder, "resume=parts")
    assert resumed.code == 0, resumed
    for name in ("predictions.csv", "model.safetensors"):
        assert (folder / "whole" / name).read_bytes() == (folder / "parts" / name).read_bytes()
    one, two = (
        [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in read_table(folder / run / "metrics.csv")
        ]
        for run in ("whole", "parts")
    )
    assert one == two
    tried = [[each["name"], each["verdict"]] for each in read_summary(folder / "parts")["attempts"]]
    assert tried == [[each["name"], each["verdict"]] for each in read_summary(folder / "whole")["attempts"]]


def test_chaos_is_seen_by_the_constants_that_were_found_where_a_fit_has_spoilt_them():
    """Fitted to the whole of a chaotic trajectory, constants may end in one of many poor optima."""
    ts = np.arange(1200) * 0.02
    train = nf.Dataset.from_arrays(ts, solved(lorenz, (-4.9, -3.74, 24.69), ts), states=("x", "y", "z"))
    equations = {"x": "a*(y - x)", "y": "x*(b - z) - y", "z": "x*y - c*z"}
    field = functools.partial(nf.Known, equations=equations, constants={"a": 10.0, "b": 28.0, "c": 2.667})
    fit = fit_to(train, field=field, steps=1, recipe="direct", effort="quick")
    spoilt = eqx.tree_at(
        lambda model: model.field.constants.raw, fit.model, replace_fn=lambda raw: raw + jnp.array([0, 1, 0])
    )
    fit = replace(fit, model=spoilt)
    assert judge.horizon_of(fit, 0.5) is None
    for name, verdict, expected in (
        (judge.SPARSE_EQUATIONS, "poor", 50), (judge.SPARSE_EQUATIONS, "good", None), ("quadratic", "poor", None),
    ):  # fmt: skip
        assert judge.horizon_seen_by(judged(fit, name, verdict)) == expected


def positions(starts, rows=80, noise=0.01):
    """Angles of a damped pendulum from several starts, without its velocities."""
    ts, rng = 0.08 * np.arange(rows), np.random.default_rng(0)

    def rates(t, y):
        return [y[1], -4 * np.sin(y[0]) - 0.3 * y[1]]

    solve = functools.partial(solve_ivp, rates, (0, ts[-1]), t_eval=ts, rtol=1e-9, atol=1e-9)
    ys = np.stack([solve(y0=[start, 0.0]).y[0] for start in starts])
    return nf.Dataset.from_arrays(ts, (ys + noise * rng.normal(size=ys.shape))[..., None], states=("q",))


def test_equations_of_motion_are_read_from_positions_alone(monkeypatch):
    train = positions([2.2, 1.0, -1.6])
    field = functools.partial(nf.SecondOrder, width=16, depth=1)
    fit = nf.fit(train, field=field, hidden=("q_rate",), optimizer="lm", options=nf.Options(effort="quick"))
    made = judge.judge_attempt(candidates.SECOND_ORDER, fit, None)

    def read(options=None, *, name=candidates.SECOND_ORDER, **more):
        data = replace(made, fit=replace(fit, data=fit.data | more), attempt=replace(made.attempt, name=name))
        return candidates.read_equations_of_motion(candidates.Race(options or nf.Options(), "normal", (data,)))

    found = read()
    equations, constants = found.field.keywords["equations"], found.field.keywords["constants"]
    assert equations["q"] == "q_rate"
    assert "sin(q)" in equations["q_rate"]
    np.testing.assert_allclose(sorted(constants.values()), [-4, -0.3], atol=0.05)
    assert (found.hidden, found.start.keywords) == (("q_rate",), {"given": None})
    assert read(validation=train).start.keywords == {"given": 20}
    findings = search_field(fit.model.typical, train, Vocabulary(), effort="quick")
    monkeypatch.setattr(candidates, "search_field", lambda *_, **__: replace(findings, fits=False))
    assert read() is None
    monkeypatch.setattr(candidates, "search_field", lambda *_, **__: replace(findings, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        read()
    monkeypatch.undo()
    assert read(name="as chosen") is None
    assert read(nf.Options(discover=False)) is None


def test_a_record_of_positions_ends_with_its_equations():
    fit = nf.fit(positions([2.2, 1.0, -1.6, 0.5]), validation=positions([1.4]))
    kept = next(attempt for attempt in fit.attempts if attempt.kept)
    assert kept.name == candidates.EQUATIONS_OF_MOTION
    assert kept.verdict in ("good", "noise-limited")
    assert fit.score(positions([-2.0, 0.8])).nrmse < 0.03
