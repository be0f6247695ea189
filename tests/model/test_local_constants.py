"""Constants of which each trajectory, or each group of trajectories, has a value of its own."""

import dataclasses
import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.data.groups import with_trajectory_numbers
from node_fit.export.tracing import CannotExport
from node_fit.fitting.problem import build_problem
from node_fit.model.fields.known import constants_in
from node_fit.model.one_trajectory import of_trajectory
from node_fit.runtime.placement import scope

KEY = jax.random.key(0)
NAMES, RATES = ("A", "well 2", "C"), {"A": 0.5, "well 2": 0.9, "C": 1.4}
TS = np.linspace(0.0, 3.0, 13)
DECAY = functools.partial(nf.Known, equations={"x": "-k*x + d"}, constants={"k": [0.8, 0, None], "d": 0.1})


def decays(
    rates: dict[str, float] = RATES, *, strain: dict[str, float] | None = None, noise: float = 0.0
) -> nf.Dataset:
    """`x' = 0.1 - k x` from 2, with a rate of each trajectory."""
    rng = np.random.default_rng(0)
    ys = [(2 - 0.1 / k) * np.exp(-k * TS) + 0.1 / k for k in rates.values()]
    rows = [(y + noise * rng.normal(size=len(TS)))[:, None] for y in ys]
    data = nf.Dataset.from_arrays([TS] * len(rows), rows, states=["x"], trajectories=list(rates))
    if strain is None:
        return data
    us = np.array([strain[name] for name in rates])[:, None, None] * np.ones((1, len(TS), 1))
    return nf.Dataset.from_arrays(
        [TS] * len(rows), rows, list(us), states=["x"], inputs=["strain"], trajectories=list(rates)
    )


def model_of(data: nf.Dataset, **options) -> nf.NeuralODE:
    given = {"field": functools.partial(DECAY, local={"k": "trajectory"}), "key": KEY} | options
    with scope("x64"):
        return nf.make_model(data, solver=nf.Solver(rtol=1e-9, atol=1e-11), **given)


def with_values(model: nf.NeuralODE, **values: float) -> nf.NeuralODE:
    """The model with other values of its constants."""
    (group,) = constants_in(model.field)
    fresh = type(group).of({name: [values.get(name, value), *pair] for (name, value), pair in zip(
        group.as_dict().items(), group.bounds, strict=True)})  # fmt: skip
    with scope("x64"):
        raw = np.array(fresh.raw, np.float64) * np.array(fresh.scales) / np.array(group.scales)
        return eqx.tree_at(lambda m: constants_in(m.field)[0].raw, model, jax.numpy.asarray(raw))


FITTED = {"k_A": 0.5, "k_well_2": 0.9, "k_C": 1.4}


def test_each_trajectory_is_simulated_with_its_own_constant():
    data = decays()
    model = with_values(model_of(data), **FITTED)
    assert model.constants() == pytest.approx(FITTED | {"d": 0.1})
    np.testing.assert_allclose(model.predict(data), data.ys, rtol=1e-6)
    one = data.select([1])
    np.testing.assert_allclose(model.predict(one), one.ys, rtol=1e-6)
    windows = data.windows(5, 4)
    np.testing.assert_allclose(model.predict(windows), windows.ys, rtol=1e-6)
    alone = model.predict(y0={"x": 2.0}, ts=TS, u={"trajectory": "C"})
    np.testing.assert_allclose(alone[:, 0], data.ys[2, :, 0], rtol=1e-6)


def test_a_trajectory_that_was_not_fitted_is_refused_by_its_name():
    model = model_of(decays())
    with pytest.raises(
        ValueError, match=r"trajectory 'D' was not fitted, .*fit it, too, or predict one of 'A', 'well 2'"
    ):
        model.predict(decays({"D": 0.5}))
    with pytest.raises(ValueError, match=r"each trajectory has constants of its own; choose one, such as u="):
        model.predict(y0={"x": 2.0}, ts=TS)
    with pytest.raises(ValueError, match="trajectory 'C' was not fitted"):
        build_problem(nf.Options(field=functools.partial(DECAY, local={"k": "trajectory"})), decays().select([0, 1]),
                      decays().select([2]))  # fmt: skip


def test_trajectories_with_one_value_of_a_covariate_share_a_constant():
    rates = {"A": 0.5, "B": 1.4, "C": 0.5}
    data = decays(rates, strain={"A": 1.0, "B": 2.5, "C": 1.0})
    model = model_of(data, field=functools.partial(DECAY, local={"k": "strain"}))
    model = with_values(model, k_1=0.5, k_2_5=1.4)
    assert set(model.constants()) == {"k_1", "k_2_5", "d"} and model.inputs == ("strain",)
    np.testing.assert_allclose(model.predict(data), data.ys, rtol=1e-6)
    new = decays({"new": 1.4}, strain={"new": 2.5})
    np.testing.assert_allclose(model.predict(new), new.ys, rtol=1e-6)
    with pytest.raises(ValueError, match="trajectory 'new' has strain = 3, for which k is not known; the fit had"):
        model.predict(decays({"new": 1.4}, strain={"new": 3.0}))


def test_the_derivative_by_each_constant_is_that_of_its_trajectory():
    data = decays()
    model = with_values(model_of(data), **FITTED)
    with scope("x64"):
        batch = model.batch(data)

        @jax.jit
        def ends(raw: jax.Array) -> jax.Array:
            return eqx.tree_at(lambda m: m.field.constants.raw, model, raw).forecast(batch).ys[:, -1, 0]

        raw = model.field.constants.raw
        slopes = np.asarray(jax.jacfwd(ends)(raw))
        nudges = 1e-5 * np.eye(raw.size)
        differences = np.stack([(ends(raw + nudge) - ends(raw - nudge)) / 2e-5 for nudge in nudges], axis=1)
    np.testing.assert_allclose(slopes, differences, atol=1e-7)
    assert (np.count_nonzero(np.abs(slopes) > 1e-9, axis=1) == 2).all(), "its own k, and the shared d"


def test_a_model_file_and_one_trajectory_of_it(tmp_path):
    data = decays()
    model = with_values(model_of(data), **FITTED)
    nf.save(model, tmp_path / "wells.safetensors")
    again = nf.load(tmp_path / "wells.safetensors")
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    one = of_trajectory(again, "well 2")
    assert one.constants() == pytest.approx({"k": 0.9, "d": 0.1}) and one.inputs == () and not one.local
    np.testing.assert_allclose(one.predict(y0={"x": 2.0}, ts=TS)[:, 0], data.ys[1, :, 0], rtol=1e-6)
    with pytest.raises(CannotExport, match=r"choose one to write, such as trajectory='A' \(--trajectory A\)"):
        nf.export(again, "numpy", tmp_path / "out", data=data)
    with pytest.raises(ValueError, match="trajectory 'D' was not fitted; choose from"):
        nf.export(again, "numpy", tmp_path / "out", data=data, trajectory="D")
    done = nf.export(again, "numpy", tmp_path / "out", data=data, trajectory="C")
    assert done.difference.largest < 1e-6


def test_starts_and_formulas_have_local_constants_too():
    data = decays()
    start = functools.partial(
        nf.Stated, values={"x": "x0"}, constants={"x0": [1.0, 0, None]}, local={"x0": "trajectory"}
    )
    model = model_of(data, start=start)
    assert set(model.constants()) == {*FITTED, "d", "x0_A", "x0_well_2", "x0_C"}
    with scope("x64"):
        raw = jax.numpy.log(jax.numpy.asarray([2.0, 3.0, 4.0]))
        model = eqx.tree_at(lambda m: m.start.constants.raw, model, raw)
    np.testing.assert_allclose(model.predict(data)[:, 0, 0], [2.0, 3.0, 4.0])
    readout = functools.partial(
        nf.FormulaReadout, formulas={"x": "k*z + gain"}, constants={"gain": 1.0}, local={"gain": "trajectory"}
    )
    field = functools.partial(DECAY, equations={"z": "-k*z + d"}, local={"k": "trajectory"})
    read = model_of(data, field=field, hidden=["z"], observation=readout, start=functools.partial(nf.First, absent=2.0))
    read = with_values(read, **FITTED)
    with scope("x64"):
        read = eqx.tree_at(lambda m: m.observation.constants.raw, read, jax.numpy.asarray([1.0, 2.0, 3.0]))
    expected = [0.5 * 2 + 1, 0.9 * 2 + 2, 1.4 * 2 + 3]
    np.testing.assert_allclose(read.predict(data)[:, 0, 0], expected)


def test_numbers_stay_those_of_the_fit_where_trajectories_are_left_out():
    data = with_trajectory_numbers(decays(), NAMES)
    model = model_of(data.select([0, 2]))
    assert model.scaler.trajectories == ("A", "", "C") and set(model.constants()) == {"k_A", "k_C", "d"}
    model = with_values(model, k_A=0.5, k_C=1.4)
    np.testing.assert_allclose(model.predict(decays().select([2])), decays().ys[2:], rtol=1e-6)
    with pytest.raises(ValueError, match="trajectory 'well 2' was not fitted"):
        model.predict(decays())


def test_a_network_does_not_see_the_number_of_the_trajectory():
    field = functools.partial(
        nf.Hybrid, equations={"x": "-k*x + f"}, constants={"k": [0.8, 0, None]}, terms={"f": 1.0},
        local={"k": "trajectory"}, width=4, depth=1,
    )  # fmt: skip
    model = model_of(decays(), field=field)
    assert model.field.sees == ("x",) and set(model.constants()) == {"k_A", "k_well_2", "k_C"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"local": {"q": "trajectory"}}, "local names 'q', which is none of the constants"),
        ({"local": {"k": "strain"}}, "local: 'k' is by 'strain', which is no covariate of the data; choose from traj"),
        ({"local": {"k": "trajectory"}, "constants": {"k": [1, 1, 1], "d": 0.1}}, "local names 'k', which is held"),
        (
            {"local": {"k": "trajectory"}, "constants": {"k": 1.0, "k_A": 0.1}, "equations": {"x": "-k*x + k_A"}},
            "constant 'k_A' would have two meanings beside local 'k'; rename one",
        ),
        (
            {"local": {"d": "trajectory"}, "equations": {"x": "-k*x"}},
            "constants names 'd', which occurs in no equation",
        ),
    ],
)
def test_wrong_local_constants_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        model_of(decays(), field=functools.partial(DECAY, **options))


def test_an_input_that_moves_tells_no_groups():
    us = np.linspace(0, 1, 13)[:, None]
    data = nf.Dataset.from_arrays([TS], [decays().ys[0]], [us], states=["x"], inputs=["u"], trajectories=["A"])
    with pytest.raises(ValueError, match="local: 'k' is by 'u', which changes within trajectory 'A'; name a covariate"):
        model_of(data, field=functools.partial(DECAY, local={"k": "u"}))


@pytest.mark.long
@pytest.mark.slow
def test_local_constants_are_found_and_leave_no_difference_between_trajectories():
    """With a shared rate the residuals of trajectories differ, and with one of each they do not."""
    data = decays(noise=0.01)
    options = nf.Options(precision="x64")
    fit = nf.fit(data, field=functools.partial(DECAY, local={"k": "trajectory"}), start=nf.Fitted, options=options)
    confidence = fit.confidence()
    for name, true in (FITTED | {"d": 0.1}).items():
        found = confidence.constants[name]
        assert abs(found.estimate - true) < 4 * found.standard_error
        assert found.standard_error < 0.2 * true
    assert any(
        note.startswith("The values of k differ between trajectories by more than chance") for note in confidence.notes
    )
    profiled = fit.confidence("profile").constants["k_A"]
    assert profiled.lower < 0.5 < profiled.upper
    assert "differ by more than chance" not in str(fit.diagnose())
    assert fit.diagnose().kind in ("good", "noise-limited")
    np.testing.assert_allclose(fit.predict(data), data.ys, atol=0.05)
    assert fit.predict(y0={"x": 2.0}, ts=TS, u={"trajectory": "A"})[-1, 0] == pytest.approx(data.ys[0, -1, 0], abs=0.05)
    shared = nf.fit(data, field=DECAY, start=nf.Fitted, options=dataclasses.replace(options, effort="quick"))
    assert shared.diagnose().kind not in ("good", "noise-limited")


@pytest.mark.slow
def test_values_that_do_not_differ_are_said_to_be_alike():
    data = decays(dict.fromkeys(NAMES, 0.7), noise=0.01)
    fit = nf.fit(data, field=functools.partial(DECAY, local={"k": "trajectory"}), start=nf.Fitted,
                 options=nf.Options(precision="x64"))  # fmt: skip
    assert any("differ by no more than chance, so a shared one may do" in note for note in fit.confidence().notes)
