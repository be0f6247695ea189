"""Measured channels that are formulas of states, inputs, the time and constants."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.runtime.placement import scope

KEY = jax.random.key(0)
R0, R1, C, OCV = 0.012, 0.02, 2200.0, 3.71
CELL = functools.partial(nf.Known, equations={"V1": "I/C - V1/(R1*C)"}, constants={"R1": R1, "C": C})
VOLTAGE = nf.FormulaReadout(formulas={"V": "ocv - R0*I - V1"}, constants={"ocv": OCV, "R0": [R0, 0, None]})
START = functools.partial(nf.First, absent={"V1": 0.0})


def current(t: np.ndarray) -> np.ndarray:
    """A current that is switched at rows."""
    return np.where((t // 100).astype(int) % 2 == 1, 2.0, 0.0)


def cell(step: float = 10.0, noise: float = 0.0) -> nf.Dataset:
    """The voltage of a cell: a resistance beside a resistance with a capacity, and a held current."""
    ts = np.arange(0.0, 601.0, step)
    us, v1 = current(ts), np.zeros(len(ts))
    for row in range(1, len(ts)):
        rest = us[row - 1] * R1
        v1[row] = rest + (v1[row - 1] - rest) * np.exp(-step / (R1 * C))
    voltage = OCV - R0 * us - v1 + noise * np.random.default_rng(1).normal(size=len(ts))
    return nf.Dataset.from_arrays(ts, voltage[:, None], us[:, None], states=["V"], inputs=["I"])


def model_of(data: nf.Dataset, **options) -> nf.NeuralODE:
    given = {"field": CELL, "hidden": ["V1"], "start": START, "observation": VOLTAGE} | options
    with scope("x64"):
        return nf.make_model(data, solver=nf.Solver(inputs="hold"), key=KEY, **given)


def test_a_channel_is_its_formula_at_rows_and_between():
    data = cell()
    model = model_of(data)
    assert model.latent == ("V1",) and model.states == ("V",) and model.system.measured == 0
    np.testing.assert_allclose(model.predict(data)[0, :, 0], data.ys[0, :, 0], atol=1e-7)
    fine = cell(step=5.0)
    np.testing.assert_allclose(model.predict(data, ts=fine.ts)[0, :, 0], fine.ys[0, :, 0], atol=1e-7)


@pytest.mark.parametrize("inputs", ["linear", "cubic"])
def test_inputs_between_rows_are_those_of_the_solver(inputs):
    """A formula that is the input itself shows what it is at any time."""
    ts = np.linspace(0.0, 4.0, 9)
    data = nf.Dataset.from_arrays(ts, np.sin(ts)[:, None], np.sin(ts)[:, None], states=["y"], inputs=["u"])
    field = functools.partial(nf.Known, equations={"x": "u - x"}, constants={})
    readout = functools.partial(nf.FormulaReadout, formulas={"y": "u + 0*x"})
    with scope("x64"):
        model = nf.make_model(
            data, field=field, hidden=["x"], observation=readout, solver=nf.Solver(inputs=inputs), key=KEY
        )
    fine = np.linspace(0.0, 4.0, 41)
    found = model.predict(data, ts=fine[None])[0, :, 0]
    np.testing.assert_allclose(found[::5], np.sin(ts), atol=1e-12)
    if inputs == "linear":
        np.testing.assert_allclose(found, np.interp(fine, ts, np.sin(ts)), atol=1e-12)
    else:
        np.testing.assert_allclose(found, np.sin(fine), atol=0.02)
        assert np.abs(found - np.interp(fine, ts, np.sin(ts))).max() > 0.01


@pytest.mark.slow
def test_constants_of_field_and_formula_are_found():
    data = cell(noise=0.0005)
    field = functools.partial(CELL, constants={"R1": [0.05, 0, None], "C": [1000.0, 0, None]})
    readout = functools.partial(VOLTAGE, constants={"ocv": 3.6, "R0": [0.05, 0, None]})
    fit = nf.fit(
        data, field=field, hidden=["V1"], start=START, options=nf.Options(precision="x64", observation=readout),
        solver=nf.Solver(inputs="hold"),
    )  # fmt: skip
    assert fit.constants == pytest.approx({"R1": R1, "C": C, "ocv": OCV, "R0": R0}, rel=0.05)
    intervals = fit.confidence().constants
    assert set(intervals) == {"R1", "C", "ocv", "R0"}
    for name, true in {"R1": R1, "C": C, "ocv": OCV, "R0": R0}.items():
        assert abs(fit.constants[name] - true) < 4 * intervals[name].standard_error
    assert fit.diagnose().kind in ("good", "noise-limited")


def test_a_model_file_and_an_export_have_its_formulas(tmp_path):
    data = cell()
    model = model_of(data)
    nf.save(model, tmp_path / "cell.safetensors")
    again = nf.load(tmp_path / "cell.safetensors")
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    assert nf.export(model, "c", tmp_path / "out", data=data).difference.largest < 1e-6


def two_populations() -> nf.Dataset:
    ts = np.linspace(0.0, 3.0, 25)
    ys = solve_ivp(lambda t, y: [-0.9 * y[0], 0.9 * y[0] - 0.15 * y[1]], (0, 3), [10.0, 0.0], t_eval=ts, rtol=1e-10).y
    measured = np.stack([2 * (ys[0] + 0.5 * ys[1]), ys[0]], axis=1)
    return nf.Dataset.from_arrays(ts, measured, states=["total", "A"])


FALL = functools.partial(
    nf.Known, equations={"A": "-ka*A", "B": "ka*A - kb*B"}, constants={"ka": 0.5, "kb": [0.1, 0, None]}
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("log", [(), ("total",)])
def test_a_channel_may_be_a_state_beside_one_that_is_a_formula(log):
    data = two_populations()
    readout = functools.partial(nf.FormulaReadout, formulas={"total": "s*(A + 0.5*B)"}, constants={"s": 1.0})
    options = nf.Options(precision="x64", observation=readout, scaling=nf.Scaling(log=log))
    start = functools.partial(nf.Fitted, absent={"B": 0.0})
    fit = nf.fit(data, field=FALL, hidden=["B"], start=start, options=options)
    assert fit.model.latent == ("A", "B")
    assert fit.constants == pytest.approx({"ka": 0.9, "kb": 0.15, "s": 2.0}, rel=1e-3)
    np.testing.assert_allclose(fit.predict(data), data.ys, rtol=1e-3, atol=1e-3)


def test_formulas_may_have_the_constants_of_the_field_and_the_time():
    data = two_populations()
    with scope("x64"):
        renamed = functools.partial(nf.Known, equations={"x": "-ka*x"}, constants={"ka": 0.5})
        readout = functools.partial(nf.FormulaReadout, formulas={"total": "ka*x + t", "A": "x^2"})
        model = nf.make_model(data, field=renamed, hidden=["x"], observation=readout, key=KEY,
                              start=functools.partial(nf.First, absent=3.0))  # fmt: skip
    ts, x = data.ts[0], 3.0 * np.exp(-0.5 * data.ts[0])
    np.testing.assert_allclose(model.predict(data)[0], np.stack([0.5 * x + ts, x**2], axis=1), atol=1e-6)


def test_channels_are_differentiated_by_constants_of_formulas():
    data = cell()
    model = model_of(data)
    with scope("x64"):
        batch = model.batch(data)

        @jax.jit
        def loss(raw: jax.Array) -> jax.Array:
            moved = eqx.tree_at(lambda m: m.observation.constants.raw, model, raw)
            return (moved.simulate(batch).ys ** 2).sum()

        raw = model.observation.constants.raw
        gradient = jax.grad(loss)(raw)
        nudge = 1e-6 * np.eye(2)
        expected = [(loss(raw + step) - loss(raw - step)) / 2e-6 for step in nudge]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": 1}, r"formulas need the names of the hidden states; write hidden=\[x, y\], not hidden=1"),
        ({"hidden": 0}, "all channels are formulas, so name the states"),
        (
            {"observation": functools.partial(VOLTAGE, formulas={"V": "ocv - R0*J"})},
            r"^formula of 'V': 'J' is not a state, .*give its first value, \+observation.constants.J=1",
        ),
        (
            {"observation": functools.partial(VOLTAGE, formulas={"V": "ocv - V1"})},
            "observation.constants names 'R0', which occurs in no formula",
        ),
        (
            {"observation": functools.partial(VOLTAGE, formulas={"W": "ocv - R0*I - V1"})},
            "observation.formulas has 'W', which is not measured; the channels are V",
        ),
        (
            {"observation": functools.partial(VOLTAGE, constants={"ocv": 1.0, "R0": 1.0, "C": 1.0})},
            "names 'C', which occurs in no formula",
        ),
        (
            {"field": functools.partial(CELL, constants={"R1": 1.0, "C": 1.0, "R0": 1.0})},
            "names 'R0', which occurs in no equation; .* move it to observation.constants",
        ),
        ({"observation": functools.partial(VOLTAGE, formulas={"V": "ocv -"})}, "it ends where a value should follow"),
    ],
)
def test_wrong_formulas_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        model_of(cell(), **options)


def test_a_constant_has_one_home():
    field = functools.partial(CELL, constants={"R1": R1, "C": C})
    readout = functools.partial(VOLTAGE, formulas={"V": "ocv - R1*I - V1"}, constants={"ocv": 3.0, "R1": 1.0})
    with pytest.raises(ValueError, match="'R1' is a constant of the field and of the observation"):
        model_of(cell(), field=field, observation=readout)
