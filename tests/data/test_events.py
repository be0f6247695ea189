"""Doses, resets and switches: states that jump at known times."""

import dataclasses
import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary
from helpers.problems import fit_to

import node_fit as nf
from node_fit.app.run_directory import fingerprint_data
from node_fit.data.events import Jumps
from node_fit.evaluation.baselines import predict_baselines
from node_fit.evaluation.simulation import simulate_splits
from node_fit.runtime.placement import scope

KA, KE, VOLUME = 1.2, 0.25, 20.0
DOSES = (("A", 0.0, 100.0), ("A", 6.3, 50.0), ("B", 0.0, 200.0), ("B", 5.0, 100.0), ("B", 9.1, 100.0))
ROWS = [{"time": time, "trajectory": name, "state": "gut", "add": dose} for name, time, dose in DOSES]
EQUATIONS = {"plasma": "ka*gut/V - ke*plasma", "gut": "-ka*gut"}
CONSTANTS = {"ka": [0.8, 0.0, None], "ke": [0.4, 0.0, None], "V": [15.0, 0.0, None]}


def concentration(ts, doses, ka=KA, ke=KE, volume=VOLUME):
    """Bateman's function, summed over doses: the concentration just before a dose at the same time."""
    since = ts[:, None] - np.array([time for time, _ in doses])[None]
    each = np.where(since > 0, np.exp(-ke * np.maximum(since, 0)) - np.exp(-ka * np.maximum(since, 0)), 0)
    return each @ np.array([dose for _, dose in doses]) * ka / (volume * (ka - ke))


def blood(noise: float = 0.0, times=12) -> nf.Dataset:
    """Samples of the blood of two people, at times of their own."""
    rng = np.random.default_rng(0)
    ts = [np.concatenate([[0.0], np.sort(rng.uniform(0.3, 14, times))]) for _ in "AB"]
    ys = []
    for name, t in zip("AB", ts, strict=True):
        exact = concentration(t, [(time, dose) for own, time, dose in DOSES if own == name])
        ys.append((exact * np.exp(noise * rng.standard_normal(len(t))))[:, None])
    return nf.Dataset.from_arrays(ts, ys, states=("plasma",), trajectories=("A", "B"))


def dosed(noise: float = 0.0) -> nf.Dataset:
    return nf.with_events(blood(noise), ROWS)


def test_the_example_of_the_docstring_runs():
    example = re.search("```python\n(.*?)```", nf.with_events.__doc__, re.DOTALL)[1]
    names = {"node_fit": nf, "data": blood()}
    exec(textwrap.dedent(example), names)
    assert names["data"].events is not None


def pharmacokinetic(system, key):
    return nf.KnownField(system, equations=EQUATIONS, constants=CONSTANTS, key=key)


def test_each_event_has_a_row():
    before, after = blood(), dosed()
    assert list(after.lengths) == [before.lengths[0] + 1, before.lengths[1] + 2]
    for index, times in enumerate(([0.0, 6.3], [0.0, 5.0, 9.1])):
        rows = after.events.rows[index]
        np.testing.assert_allclose(after.ts[index][rows], times)
        measured = np.isfinite(after.ys[index, :, 0])
        np.testing.assert_array_equal(after.ys[index, measured, 0], before.ys[index, :, 0])
    assert after.events.states == ("gut",)


def test_cut_data_keep_their_events():
    data = dosed()
    later = data.after(5.5)
    np.testing.assert_allclose(later.ts[1][later.events.rows[1]], [9.1])
    one = data.select([1])
    assert one.events.factor.shape[:2] == one.ts.shape
    windows = data.windows(4, 3)
    assert windows.events.rows.any() and windows.events.shift.shape[:2] == windows.ts.shape


def known(equations=EQUATIONS, constants=CONSTANTS):
    def field(system, key):
        return nf.Known(system, equations=equations, constants=constants, key=key)

    return field


OPTIONS = {
    "field": known(),
    "hidden": ("gut",),
    "optimizer": nf.LevenbergMarquardt(),
    "freeze": ("start.hidden",),
    "precision": "x64",
}


@pytest.fixture(scope="module")
def fit() -> nf.Fit:
    return fit_to(dosed(), **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [nf.Solver(), nf.Solver(stepping="adaptive"), nf.Solver("kvaerno3")],
    ids=["held", "adaptive", "implicit"],
)
def test_constants_are_recovered_from_doses(solver):
    fit = fit_to(dosed(), solver=solver, **OPTIONS)
    found = fit.model.constants()
    assert found == pytest.approx({"ka": KA, "ke": KE, "V": VOLUME}, rel=1e-4)


@pytest.mark.slow
def test_doses_that_are_smeared_mislead():
    """The same doses as a rate over the interval between two samples, which is what a table of inputs can say."""
    data = blood()
    us = np.zeros((*data.ts.shape, 1))
    for index, name in enumerate("AB"):
        for own, time, dose in DOSES:
            if own == name:
                row = int(np.searchsorted(data.ts[index], time, side="right")) - 1
                us[index, row] += dose / (data.ts[index, row + 1] - data.ts[index, row])
    smeared = dataclasses.replace(data, us=us, inputs=("rate",))
    equations = {"plasma": "ka*gut/V - ke*plasma", "gut": "rate - ka*gut"}
    options = OPTIONS | {"field": known(equations), "solver": nf.Solver(stepping="adaptive", inputs="hold")}
    found = fit_to(smeared, **options).model.constants()
    assert abs(found["ka"] / KA - 1) > 0.1


@pytest.mark.slow
def test_predictions_jump_where_the_doses_are(fit):
    data = dosed()
    ts = np.linspace(0, 20, 81)[None].repeat(2, 0)
    found = fit.model.predict(data, ts)
    for index, name in enumerate("AB"):
        doses = [(time, dose) for own, time, dose in DOSES if own == name]
        np.testing.assert_allclose(found[index, :, 0], concentration(ts[index], doses), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["default", "direct"])
def test_a_network_and_a_line_search_fit_over_doses(recipe):
    """With the gradients of L-BFGS, in single precision; a spline through a jump would be no derivative."""
    fit = fit_to(decaying(), recipe=recipe, **LINE)
    assert fit.model.constants() == pytest.approx({"k": 0.7}, rel=1e-3)


LINE = {
    "field": known({"x": "-k*x"}, {"k": [0.3, 0.0, None]}),
    "optimizer": nf.LBFGS(),
    "steps": 60,
}


def decaying() -> nf.Dataset:
    """A decay that is doubled, lowered and set again at measured times, and between them."""
    ts, events = np.linspace(0, 8, 33), []
    for time, key, value in ((2.0, "multiply", 2.0), (3.1, "add", -0.2), (5.0, "set", 1.0), (5.0, "add", 0.5)):
        events.append({"time": time, "state": "x", key: value})
    ys = np.array([[exact(t)] for t in ts])
    return nf.with_events(nf.Dataset.from_arrays(ts, ys, states=("x",)), events)


def exact(t: float) -> float:
    """The states just before the events of their time."""
    x, now = 1.5, 0.0
    for time, factor, shift in ((2.0, 2.0, 0.0), (3.1, 1.0, -0.2), (5.0, 0.0, 1.5)):
        if t <= time:
            break
        x, now = factor * x * np.exp(-0.7 * (time - now)) + shift, time
    return x * np.exp(-0.7 * (t - now))


@pytest.mark.slow
def test_windows_and_segments_jump_too():
    for recipe in (
        [nf.Stage(nf.TrajectoryMatching(window=8), nf.LBFGS(), 40)],
        [nf.Stage(nf.MultipleShooting(rows=6), nf.LBFGS(), 60)],
    ):
        fit = fit_to(decaying(), recipe=recipe, **LINE)
        assert fit.model.constants() == pytest.approx({"k": 0.7}, rel=2e-2), recipe


def test_the_jumps_of_sensitivities_are_their_derivatives():
    rng = np.random.default_rng(0)
    jumps = Jumps(jnp.asarray(rng.normal(size=(1, 2))), jnp.asarray(rng.normal(size=(1, 2))))
    y, s = rng.normal(size=(1, 2)), rng.normal(size=(1, 2, 3))
    after, moved = jax.jvp(jumps.after, (jnp.asarray(y),), (jnp.asarray(s[..., 1]),))
    whole = jumps.with_sensitivities(3).after(jnp.concatenate([y, s.reshape(1, 6)], axis=1))
    np.testing.assert_allclose(whole[:, :2], after, rtol=1e-6)
    np.testing.assert_allclose(whole[:, 2:].reshape(1, 2, 3)[..., 1], moved, rtol=1e-6)


@pytest.mark.slow
def test_a_state_on_a_logarithmic_scale_is_multiplied_or_set():
    scaling = {"log": ["x"]}
    events = [{"time": 1.0, "state": "x", "multiply": 3.0}, {"time": 2.0, "state": "x", "set": 0.5}]
    ts = np.linspace(0, 3, 13)
    ys = np.where(ts <= 1, 1.0, np.where(ts <= 2, 3.0, 0.5 * np.exp(0.8))) * np.exp(-0.4 * ts)
    plain = nf.Dataset.from_arrays(ts, ys[:, None], states=("x",))
    fit = fit_to(nf.with_events(plain, events), **LINE, **scaling)
    assert fit.model.constants() == pytest.approx({"k": 0.4}, rel=1e-3)
    added = nf.with_events(plain, [{"time": 1.5, "state": "x", "add": 1.0}])
    with pytest.raises(
        ValueError, match=r"an event adds to 'x', which is on a logarithmic scale .*; set or multiply it"
    ):
        fit_to(added, **LINE, **scaling)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_share_is_set_within_its_bounds():
    ts = np.linspace(0, 4, 17)
    share = np.where(ts <= 2, 0.8 * np.exp(-0.4 * ts), 0.9 * np.exp(-0.4 * (ts - 2)))[:, None]
    plain = nf.Dataset.from_arrays(ts, share, states=("x",))
    bounds = {"bounds": {"x": (0.1, 1.0)}}
    fit = fit_to(nf.with_events(plain, [{"time": 2.0, "state": "x", "set": 0.9}]), **LINE, **bounds)
    assert fit.model.constants() == pytest.approx({"k": 0.4}, rel=1e-3)
    beyond = nf.with_events(plain, [{"time": 2.0, "state": "x", "set": 1.5}])
    with pytest.raises(ValueError, match="an event sets 'x' to a value that is not within its bounds"):
        fit_to(beyond, **LINE, **bounds)


WRONG = {
    "event 1 has the key 'dose'; events have time,": {"time": 1, "state": "x", "dose": 1},
    "event 1 needs one of add, set, multiply, got none": {"time": 1, "state": "x"},
    "event 1 needs one of add, set, multiply, got add, set": {"time": 1, "state": "x", "add": 1, "set": 2},
    "event 1 names no state": {"time": 1, "add": 1},
    "event 1 needs a number as its time, got 'noon'": {"time": "noon", "state": "x", "add": 1},
    "event 1 needs a number as its time, got '0_5'": {"time": "0_5", "state": "x", "add": 1},
    "event 1 needs a number as its add, got nan|got none": {"time": 1, "state": "x", "add": float("nan")},
    "event 1 is of trajectory 'Z'": {"time": 1, "state": "x", "add": 1, "trajectory": "Z"},
    r"event 1, at -1, comes before the first row of trajectory '0', at 0; add a row": {
        "time": -1,
        "state": "x",
        "add": 1,
    },
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_with_an_event_is_said(says):
    data = nf.Dataset.from_arrays(np.arange(5.0), np.ones((5, 1)), states=("x",))
    with pytest.raises(ValueError, match=says):
        nf.with_events(data, [WRONG[says]])


def test_another_dose_is_other_data():
    more = [{**row, "add": row["add"] + (row["time"] == 5.0)} for row in ROWS]
    others = [
        nf.with_events(blood(), more),
        nf.with_events(blood(), [{**row, "state": "depot"} for row in ROWS]),
        blood(),
    ]
    digests = {fingerprint_data(data)["sha256"] for data in (dosed(), *others)}
    assert len(digests) == 4 and fingerprint_data(dosed())["sha256"] in digests


@pytest.mark.slow
def test_an_event_in_the_last_row_happens_once():
    """The rows that fill up a shorter trajectory repeat its last one, but not its dose."""
    ts = [np.arange(3.0), np.arange(8.0)]
    data = nf.Dataset.from_arrays(ts, [np.exp(-0.7 * t)[:, None] for t in ts], states=("x",))
    data = nf.with_events(data, [{"time": 2.0, "trajectory": "0", "state": "x", "add": 1.0}])
    fit = fit_to(data, **LINE)
    later = np.array([[2.0, 2.5, 6.0], [2.0, 2.5, 6.0]])
    once = np.exp(-0.7 * later) + np.where(later > 2, np.exp(-0.7 * (later - 2)), 0) * [[1], [0]]
    np.testing.assert_allclose(fit.model.predict(data, later)[..., 0], once, rtol=1e-3)


def test_splits_that_are_simulated_together_keep_their_events():
    with scope("x64"):
        model = nf.make_model(dosed(), field=known(), hidden=("gut",), key=jax.random.key(0))
    splits = {"train": dosed().select([1]), "test": dosed().select([0])}
    found = simulate_splits(model, splits)
    for name, part in splits.items():
        assert np.ptp(found.at_rows[name]) > 0.1, "the doses are seen"
        np.testing.assert_allclose(found.at_rows[name], model.predict(part), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_hidden_states_are_simulated_beside_the_measured_ones(fit):
    system = fit.model
    ka = system.constants()["ka"]
    assert system.hidden == ("gut",)
    data = dosed()
    splits = {"train": data.select([1]), "test": data.select([0])}
    for model in (system, nf.Ensemble.of([system, system], data, None)):
        found = simulate_splits(model, splits)
        assert found.hidden == ("gut",)
        for role, name in (("train", "B"), ("test", "A")):
            ts = found.dense[role][0][0]
            since = ts[:, None] - np.array([time for own, time, _ in DOSES if own == name])
            doses = np.array([dose for own, _, dose in DOSES if own == name])
            exact = np.where(since > 0, np.exp(-ka * np.maximum(since, 0)), 0) @ doses
            np.testing.assert_allclose(found.dense_hidden[role][0, :, 0], exact, rtol=1e-3, atol=1e-2)
            np.testing.assert_allclose(found.at_rows[role], model.predict(splits[role]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(model.bands(data).ys, model.predict(data))


def test_no_baseline_ignores_the_doses():
    assert set(predict_baselines(dosed(), dosed())) == {"mean", "persistence"}


def test_events_are_given_at_once():
    with pytest.raises(ValueError, match="the data have events already"):
        nf.with_events(dosed(), ROWS)


def test_an_unknown_state_is_refused_before_anything_is_trained():
    data = nf.with_events(blood(), [{"time": 1.0, "state": "gutt", "add": 1.0}])
    with pytest.raises(ValueError, match=r"an event names 'gutt', which is not a state; did you mean 'gut'\?"):
        fit_to(data, **OPTIONS)


def test_inputs_are_held_or_interpolated_in_the_new_rows():
    ts, ramp = np.arange(20.0), np.linspace(0, 19, 20) ** 2
    switch = (ts > 7.0).astype(float)
    for us, expected in ((ramp, (49 + 64) / 2), (switch, 0.0)):
        data = nf.Dataset.from_arrays(ts, np.ones((20, 1)), us[:, None], states=("x",))
        found = nf.with_events(data, [{"time": 7.5, "state": "x", "add": 1.0}])
        assert found.us[0, 8, 0] == expected and np.isnan(found.ys[0, 8, 0])


def test_events_with_dates_count_as_the_data_do():
    when = pd.date_range("2024-03-01 08:00", periods=6, freq="h")
    frame = pd.DataFrame({"when": when, "x": np.ones(6)})
    data = nf.from_frame(frame, time="when", states=["x"])
    events = pd.DataFrame({"when": ["2024-03-01T10:30:00"], "state": ["x"], "add": [1.0]})
    found = nf.with_events(data, events)
    np.testing.assert_allclose(found.ts[0][found.events.rows[0]], [2.5])


TABLE = (
    "data=table", "data.path=mine.csv", "data.time=h", "data.states=[plasma]", "data.trajectory=person",
    "data.split.by=trajectory", "data.split.validation=0", "data.split.test=0", "hidden=[gut]", "field=known",
    "+field.equations={plasma: ka*gut/V - ke*plasma, gut: -ka*gut}",
    "+field.constants={ka: [0.8, 0, null], ke: [0.4, 0, null], V: [15, 0, null]}",
    "training.freeze=[start.hidden]", "optimizer=lm", "precision=x64",
)  # fmt: skip


@pytest.mark.slow
def test_the_commands_read_events(tmp_path):
    data = blood()
    frames = [
        pd.DataFrame({"person": name, "h": data.ts[i], "plasma": data.ys[i, :, 0]})
        for i, name in enumerate(data.trajectories)
    ]
    pd.concat(frames).to_csv(tmp_path / "mine.csv", index=False)
    lines = [f"{name};{time};gut;{dose}" for name, time, dose in DOSES]
    (tmp_path / "doses.csv").write_text("\n".join(["person;h;state;add", *lines]).replace(".", ","))
    ran = node_fit(tmp_path, *TABLE, "data.events=doses.csv", "hydra.run.dir=run")
    assert ran.code == 0, ran
    assert "events: gut at 5 times in 2 of 2 trajectories" in ran.out
    found = read_summary(tmp_path / "run")["constants"]
    assert found == pytest.approx({"ka": KA, "ke": KE, "V": VOLUME}, rel=1e-3)

    new = pd.DataFrame({"person": "C", "h": np.arange(0, 12, 0.5), "plasma": [0.0] + [np.nan] * 23})
    new.to_csv(tmp_path / "new.csv", index=False)
    words = ("run", "--data", "new.csv", "--out", "out.csv")
    ran = node_fit(tmp_path, *words, module="node_fit.predict")
    assert ran.code == 1 and "--events FILE" in ran.sentence
    (tmp_path / "own.csv").write_text("person,h,state,add\nC,0,gut,80\nC,4.25,gut,40\n")
    ran = node_fit(tmp_path, *words, "--events", "own.csv", module="node_fit.predict")
    assert ran.code == 0, ran
    predicted = pd.read_csv(tmp_path / "out.csv")
    exact = concentration(predicted["h"].to_numpy(), [(0.0, 80.0), (4.25, 40.0)])
    np.testing.assert_allclose(predicted["plasma_predicted"], exact, rtol=5e-3, atol=1e-3)

    (tmp_path / "own.csv").write_text("person,h,state,add\nC,0,gut,80\nD,4.25,gut,40\n")
    ran = node_fit(tmp_path, *TABLE, "data.events=own.csv")
    assert ran.code == 1 and "own.csv, row 1 is of trajectory 'C', which the data do not have" in ran.sentence
