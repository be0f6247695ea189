"""Equilibria, modes and responses of models whose mathematics is known."""

import functools

import jax
import numpy as np
import pytest
from helpers.commands import in_process
from helpers.problems import fit_to
from scipy.signal import TransferFunction, bode, lsim

import node_fit as nf
from node_fit.analysis.__main__ import main, parse_ranges, parse_values
from node_fit.analysis.equilibria import find_equilibria, find_hopf_points
from node_fit.analysis.linearization import Linearization, linearize_near


def model_of(equations, constants, states, inputs=(), spread=2.0, centre=0.0, **options) -> nf.NeuralODE:
    """A model of known equations, whose training data lie around a centre."""
    rng = np.random.default_rng(0)
    ys = centre + spread * rng.normal(size=(50, len(states)))
    us = 0.5 + rng.normal(size=(50, len(inputs))) if inputs else None
    data = nf.Dataset.from_arrays(np.linspace(0, 10, 50), ys, us, states=states, inputs=list(inputs) or None)
    field = functools.partial(nf.Known, equations=equations, constants=constants)
    return nf.make_model(data, field=field, key=jax.random.key(0), **options)


def van_der_pol(mu: float) -> nf.NeuralODE:
    return model_of({"x": "v", "v": "mu*(1 - x^2)*v - x"}, {"mu": mu}, ["x", "v"])


def test_van_der_pols_oscillator():
    """It rests at the origin, with eigenvalues mu/2 ± i sqrt(1 - mu²/4), and begins to oscillate at mu = 0."""
    (origin,) = find_equilibria(van_der_pol(0.5))
    assert origin.kind == "unstable focus" and not origin.is_stable
    assert max(map(abs, origin.point.values())) < 1e-6
    np.testing.assert_allclose(origin.eigenvalues[1], 0.25 + 1j * np.sqrt(1 - 0.25**2), rtol=1e-6)
    (mode,) = origin.modes
    assert mode.natural_frequency == pytest.approx(1) and mode.damping == pytest.approx(-0.25)
    (hopf,) = find_hopf_points(van_der_pol(0.5), "mu", (-1.0, 1.2))
    assert abs(hopf.value) < 1e-6 and hopf.frequency == pytest.approx(1, rel=1e-6)
    assert find_hopf_points(van_der_pol(0.5), "mu", (0.1, 1.0)) == []


def fitzhugh_nagumo() -> nf.NeuralODE:
    equations = {"v": "v - v^3/3 - w + I", "w": "(v + 0.7 - 0.8*w)/tau"}
    return model_of(equations, {"tau": 12.5}, ["v", "w"], ["I"], spread=1.5)


def test_fitzhugh_and_nagumos_neuron_begins_to_fire():
    """At Hopf points the trace is zero: v² = 1 - 0.8/12.5; the current follows from the equilibrium."""
    (rest,) = find_equilibria(fitzhugh_nagumo(), {"I": 0.0})
    assert rest.is_stable and rest.point["v"] == pytest.approx(-1.19941, rel=1e-4)
    assert rest.point["w"] == pytest.approx(-0.62426, rel=1e-4) and rest.inputs == {"I": 0.0}
    low, high = find_hopf_points(fitzhugh_nagumo(), "I", (0.0, 2.0))
    for point, v in ((low, -np.sqrt(1 - 0.8 / 12.5)), (high, np.sqrt(1 - 0.8 / 12.5))):
        w = (v + 0.7) / 0.8
        assert point.value == pytest.approx(w - v + v**3 / 3, rel=1e-6)
        frequency = np.sqrt((1 - (1 - v**2) * 0.8) / 12.5)  # The root of the determinant.
        assert point.frequency == pytest.approx(frequency, rel=1e-6)
    assert "Hopf point at I = 0.33" in str(low)


def test_lotka_and_volterras_populations_turn_around_a_centre():
    equations = {"x": "a*x - b*x*y", "y": "c*x*y - d*y"}
    model = model_of(equations, {"a": 1.1, "b": 0.4, "c": 0.1, "d": 0.5}, ["x", "y"], centre=4.0)
    points = find_equilibria(model)
    inner = next(point for point in points if point.point["x"] > 1)
    assert inner.point == pytest.approx({"x": 5.0, "y": 2.75}, rel=1e-6)
    assert inner.kind == "centre" and inner.modes[0].natural_frequency == pytest.approx(np.sqrt(1.1 * 0.5), rel=1e-6)
    empty = next(point for point in points if point is not inner)
    assert empty.kind == "saddle" and max(map(abs, empty.point.values())) < 1e-6
    np.testing.assert_allclose(sorted(empty.eigenvalues.real), [-0.5, 1.1], rtol=1e-6)


def test_equilibria_of_states_on_a_logarithmic_scale_are_in_the_users_units():
    equations = {"x": "a*x - b*x*y", "y": "c*x*y - d*y"}
    rng = np.random.default_rng(0)
    data = nf.Dataset.from_arrays(np.arange(50.0), np.exp(rng.normal(size=(50, 2))), states=["x", "y"])
    field = functools.partial(nf.Known, equations=equations, constants={"a": 1.1, "b": 0.4, "c": 0.1, "d": 0.5})
    scaling = nf.Scaling(log=["x", "y"])
    (inner,) = find_equilibria(nf.make_model(data, field=field, scaling=scaling, key=jax.random.key(0)))
    assert inner.point == pytest.approx({"x": 5.0, "y": 2.75}, rel=1e-6)
    np.testing.assert_allclose(inner.a, [[0, -0.4 * 5], [0.1 * 2.75, 0]], atol=1e-9)


def oscillator(**options) -> nf.NeuralODE:
    """A mass on a spring that a force drives: w = 2, damping 0.1, static gain 1/4 · 3."""
    return model_of({"x": "v", "v": "3*F - 4*x - 0.4*v"}, {}, ["x", "v"], ["F"], **options)


def test_the_modes_and_responses_of_a_linear_oscillator():
    point = linearize_near(oscillator(), u={"F": 0.0})
    np.testing.assert_allclose(point.a, [[0, 1], [-4, -0.4]], atol=1e-9)
    np.testing.assert_allclose(point.b, [[0], [3]], atol=1e-9)
    np.testing.assert_allclose(point.c, np.eye(2), atol=1e-12)
    (mode,) = point.modes
    assert mode.natural_frequency == pytest.approx(2) and mode.damping == pytest.approx(0.1)
    assert mode.time_constant == pytest.approx(5)
    exact = TransferFunction([3], [1, 0.4, 4])
    omegas = np.logspace(-1, 1, 50)
    _, magnitude, phase = bode(exact, omegas)
    response = point.frequency_response(omegas)
    np.testing.assert_allclose(response.magnitude[:, 0, 0], magnitude, atol=1e-6)
    np.testing.assert_allclose(response.phase[:, 0, 0], phase, atol=1e-6)
    # |G| = |G(0)|/sqrt(2) at w² = 4 (1 - 2 z² + sqrt(1 + (1 - 2 z²)²)).
    share = 1 - 2 * 0.1**2
    wide = 2 * np.sqrt(share + np.sqrt(1 + share**2))
    assert point.frequency_response(np.linspace(0.01, 5, 2000)).bandwidth("x", "F") == pytest.approx(wide, rel=2e-3)
    step = point.step_response()
    decay = np.exp(-0.2 * step.ts)
    turn = np.sqrt(4 - 0.04)
    shape = 1 - decay * (np.cos(turn * step.ts) + 0.2 / turn * np.sin(turn * step.ts))
    np.testing.assert_allclose(step.ys[:, 0], 0.75 * shape, atol=1e-3)
    assert step.ts[-1] == pytest.approx(25) and step.input == "F"
    assert step.to_frame().columns.tolist() == ["time", "x", "v"]
    assert len(response.to_frame()) == 2 * 50


def test_channels_that_are_formulas_have_their_own_gain():
    observation = functools.partial(nf.FormulaReadout, formulas={"s": "x + 2*F"})
    model = model_of({"x": "F - x"}, {}, ["s"], ["F"], hidden=["x"], observation=observation)
    point = linearize_near(model, {"x": 1.0}, {"F": 1.0})
    np.testing.assert_allclose([point.c[0, 0], point.d[0, 0]], [1, 2], atol=1e-9)
    gain = point.frequency_response([1e-3, 1e3]).response[:, 0, 0]
    np.testing.assert_allclose(np.abs(gain), [3, 2], rtol=1e-3)


def test_a_network_is_linearised_like_finite_differences():
    data = nf.Dataset.from_arrays(np.arange(30.0), np.random.default_rng(1).normal(size=(30, 2)), states=["x", "y"])
    model = nf.make_model(data, field=nf.MLP, key=jax.random.key(1))
    point = linearize_near(model, {"x": 0.3, "y": -0.2})
    step = 1e-2
    for column, name in enumerate(("x", "y")):
        ends = [
            linearize_near(model, {"x": 0.3, "y": -0.2, name: point.point[name] + sign * step}).rates
            for sign in (1, -1)
        ]
        np.testing.assert_allclose(point.a[:, column], (ends[0] - ends[1]) / (2 * step), atol=1e-4)


@pytest.mark.parametrize(
    ("a", "kind"),
    [
        ([[-1, 0], [0, -2]], "stable node"),
        ([[1, 0], [0, 2]], "unstable node"),
        ([[-1, 5], [-5, -1]], "stable focus"),
        ([[1, 0], [0, -2]], "saddle"),
        ([[0, 1], [-1, 0]], "centre"),
        ([[1e-14, 1], [-1, 1e-14]], "centre"),
        ([[0, 0], [0, -1]], "degenerate"),
    ],
)
def test_points_are_classified_by_their_eigenvalues(a, kind):
    none = np.zeros((2, 0))
    point = Linearization({"x": 0.0, "y": 0.0}, {}, ("x", "y"), np.zeros(2), np.array(a, float), none, np.eye(2), none)
    assert point.kind == kind and str(point).startswith(f"{kind} at x = 0, y = 0")
    assert point.is_stable == kind.startswith("stable")


def test_a_curve_of_equilibria_is_refused():
    model = model_of({"s": "-b*s*i", "i": "b*s*i - i"}, {"b": 0.5}, ["s", "i"])
    with pytest.raises(ValueError, match="over 20 equilibria, which likely form a curve"):
        find_equilibria(model)


def test_a_model_that_rests_nowhere_has_no_equilibrium():
    assert find_equilibria(model_of({"x": "1 + x^2"}, {}, ["x"])) == []


def test_ranges_narrow_the_search():
    model = model_of({"x": "x - x^3"}, {}, ["x"])
    assert sorted(point.point["x"] for point in find_equilibria(model)) == pytest.approx([-1, 0, 1], abs=1e-6)
    (upper,) = find_equilibria(model, within={"x": (0.5, 2.0)})
    assert upper.point["x"] == pytest.approx(1)


WRONG = {
    "state": (lambda model: linearize_near(model, {"y": 1.0}), "at names 'y', which is not a state"),
    "input": (lambda model: linearize_near(model, u={"G": 1.0}), "u names 'G', which is not an input"),
    "range": (lambda model: find_equilibria(model, within={"x": (2.0, 1.0)}), "within.x must be a range"),
    "parameter": (lambda model: find_hopf_points(model, "b", (0.0, 1.0)), "parameter names 'b', which is not an input"),
    "values": (lambda model: find_hopf_points(model, "F", (1.0, 1.0)), "between must be a range"),
    "bounds": (lambda model: find_hopf_points(model, "k", (-1.0, 1.0)), "k = -1 is not within the bounds"),
    "response": (lambda model: linearize_near(model).step_response("G"), "input names 'G', which is not an input"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_names_and_ranges_get_a_sentence(case):
    ask, says = WRONG[case]
    model = model_of({"x": "F - k*x"}, {"k": [1.0, 0.0, None]}, ["x"], ["F"])
    with pytest.raises(ValueError, match=says):
        ask(model)


def test_a_model_without_inputs_has_no_response():
    with pytest.raises(ValueError, match="the model has no inputs"):
        linearize_near(van_der_pol(0.5)).frequency_response()


def test_the_command_prints_points_and_writes_responses(tmp_path):
    nf.save(oscillator(), tmp_path / "model.safetensors")
    words = ("model.safetensors", "--inputs", "F=1", "--out", "responses")
    ran = in_process(main, tmp_path, *words)
    assert ran.code == 0, ran.err
    assert "equilibria within 4 standard deviations of the training data around their mean: 1" in ran.out
    assert "stable focus at x = 0.75" in ran.out and "natural frequency 2 rad, damping 0.1" in ran.out
    files = {path.name: path for path in (tmp_path / "responses").iterdir()}
    assert set(files) == {"bode.csv", "bode.png", "step_F.csv", "step_F.png"}
    assert files["bode.csv"].read_text().startswith("frequency,input,channel,magnitude_db,phase_deg\n")
    assert files["bode.png"].read_bytes().startswith(b"\x89PNG")
    again = in_process(main, tmp_path, *words)
    assert again.code == 1 and "exists; choose another folder, or add --overwrite" in again.err
    assert in_process(main, tmp_path, *words, "--overwrite").code == 0
    at = in_process(main, tmp_path, "model.safetensors", "--at", "x=1", "v=-2", "--inputs", "F=0")
    assert at.out.startswith("stable focus at x = 1, v = -2, F = 0\n")


def test_the_command_finds_hopf_points(tmp_path):
    nf.save(fitzhugh_nagumo(), tmp_path / "model.safetensors")
    ran = in_process(main, tmp_path, "model.safetensors", "--inputs", "I=0", "--hopf", "I=0:1", "--within", "v=-3:3")
    assert ran.code == 0 and "Hopf point at I = 0.33" in ran.out and "v from -3 to 3: 1" in ran.out
    ran = in_process(main, tmp_path, "model.safetensors", "--hopf", "I=0:0.1")
    assert "no Hopf point for I from 0 to 0.1" in ran.out


def test_words_of_the_command_are_numbers_and_ranges(tmp_path):
    assert parse_values("--at", ["x=1e-3", "a=b=-.5"]) == {"x": 1e-3, "a=b": -0.5}
    assert parse_ranges("--within", ["x=-1:2.5"]) == {"x": (-1.0, 2.5)}
    with pytest.raises(ValueError, match="--at x can't be read; write NAME=NUMBER"):
        parse_values("--at", ["x"])
    with pytest.raises(ValueError, match="--hopf I=1 can't be read; write NAME=LOW:HIGH"):
        parse_ranges("--hopf", ["I=1"])
    ran = in_process(main, tmp_path, "nowhere")
    assert ran.code == 1 and "nowhere is no run and no .safetensors file" in ran.err


def test_a_fit_tells_its_equilibria_and_responses():
    rng = np.random.default_rng(0)
    ts, us = np.linspace(0, 20, 100), np.repeat(rng.normal(size=10), 10)
    ys = np.zeros(100)
    for row in range(99):
        ys[row + 1] = us[row] + (ys[row] - us[row]) * np.exp(-0.5 * (ts[1] - ts[0]))
    data = nf.Dataset.from_arrays(ts, ys[:, None], us[:, None], states=["y"], inputs=["u"], units={"t": "h"})
    field = functools.partial(nf.Known, equations={"y": "(u - y)/tau"}, constants={"tau": 1.0})
    fit = fit_to(data, field=field, steps=30, recipe="direct", solver=nf.Solver("heun", inputs="hold"), ridge=0.0)
    (rest,) = fit.equilibria({"u": 0.5})
    assert rest.point["y"] == pytest.approx(0.5, rel=1e-4) and rest.modes[0].time_constant == pytest.approx(2, rel=0.02)
    assert "time constant 2" in str(rest) and " h" in str(rest)
    assert fit.linearize({"y": 0.0}, {"u": 0.0}).step_response().ys[-1, 0] == pytest.approx(1, abs=0.01)
    assert fit.hopf_points("u", (0.0, 1.0)) == []


@pytest.mark.long
@pytest.mark.slow
def test_the_bode_diagram_of_a_fitted_oscillator_is_right_to_its_bandwidth():
    """w = 2, damping 0.3, from one noisy record of positions under a random force; within 0.5 dB."""
    rng = np.random.default_rng(3)
    ts = np.linspace(0, 40, 401)
    force = np.repeat(rng.normal(size=67), 6)[:401]
    exact = TransferFunction([4.0], [1, 1.2, 4.0])
    _, ys, _ = lsim(exact, force, ts, interp=False)
    ys = ys + 0.01 * ys.std() * rng.normal(size=401)
    data = nf.Dataset.from_arrays(ts, ys[:, None], force[:, None], states=["x"], inputs=["F"])
    fit = nf.fit(data, field=nf.Linear, options=nf.Options(hidden=1, solver=nf.Solver(inputs="hold"), precision="x64"))
    point = fit.linearize(u={"F": 0.0})
    omegas = np.linspace(0.05, 4.0, 200)
    _, magnitude, _ = bode(exact, omegas)
    response = point.frequency_response(omegas)
    wide = response.bandwidth("x", "F")
    inside = omegas <= wide
    assert 2 < wide < 3 and np.abs(response.magnitude[inside, 0, 0] - magnitude[inside]).max() < 0.5
    assert point.modes[0].natural_frequency == pytest.approx(2, rel=0.02)
