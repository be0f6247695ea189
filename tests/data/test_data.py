"""The shipped data: their script reproduces them, and they satisfy the equations in their README."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"


def load_script():
    spec = importlib.util.spec_from_file_location("generate_data", ROOT / "scripts" / "datasets" / "generate_data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate_data = load_script()


def read(path, *columns):
    """Times `(time,)` and columns `(trajectory, time, column)` of a file whose trajectories share their times."""
    frame = pd.read_csv(path)
    trajectories = len(np.unique(frame["trajectory"].to_numpy()))
    ts = frame["t"].to_numpy().reshape(trajectories, -1)
    assert (ts == ts[0]).all()
    return ts[0], frame[list(columns)].to_numpy().reshape(trajectories, -1, len(columns))


# The right-hand sides, rewritten from the README, with the state in the last axis.
def oscillator(z):
    x, y = np.moveaxis(z, -1, 0)
    return np.stack([y / (1 + y), -x / (1 + x)], axis=-1)


def spiral(z):
    x, y = np.moveaxis(z, -1, 0)
    return np.stack([-0.1 * x**3 + 2 * y**3, -2 * x**3 - 0.1 * y**3], axis=-1)


def lorenz(z):
    x, y, height = np.moveaxis(z, -1, 0)
    return np.stack([10 * (y - x), x * (28 - height) - y, x * y - 8 / 3 * height], axis=-1)


def runge_kutta(field, z, span, steps):
    """The state after `span`, by the classical Runge-Kutta method."""
    h = span / steps
    for _ in range(steps):
        k1 = field(z)
        k2 = field(z + h / 2 * k1)
        k3 = field(z + h / 2 * k2)
        k4 = field(z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z


def derivative(z, h):
    """Five-point central differences in time, without the two rows at each end."""
    return (z[:, :-4] - 8 * z[:, 1:-3] + 8 * z[:, 3:-1] - z[:, 4:]) / (12 * h)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    generate_data.main(["--out", str(out)])
    return out


def test_every_shipped_table_is_made_or_typed(made):
    others = {"lynx_hare.csv", "alpha_pinene.csv", "duffing.csv", "motor.csv", "house.csv"}
    assert {path.name for path in DATA.glob("*.csv")} == {path.name for path in made.glob("*.csv")} | others


@pytest.mark.parametrize("name", generate_data.SYSTEMS)
def test_script_makes_the_shipped_file_again(made, name):
    shipped, again = pd.read_csv(DATA / f"{name}.csv"), pd.read_csv(made / f"{name}.csv")
    # Other processors may round differently; the Lorenz system amplifies this by about 1e3 in 7 time units.
    pd.testing.assert_frame_equal(shipped, again, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.csv")), ids=lambda path: path.name)
def test_shipped_files_are_small_and_described(path):
    assert path.stat().st_size < 1e6
    assert f"`{path.name}`" in (DATA / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "field", "states", "shape"),
    [
        ("oscillator", oscillator, "xy", (256, 100, 2)),
        ("spiral", spiral, "xy", (8, 32, 2)),
        ("lorenz", lorenz, "xyz", (8, 101, 3)),
    ],
)
def test_each_row_follows_from_the_row_before(name, field, states, shape):
    ts, z = read(DATA / f"{name}.csv", *states)
    assert z.shape == shape
    after = runge_kutta(field, z[:, :-1], ts[1] - ts[0], steps=40)
    np.testing.assert_allclose(after, z[:, 1:], rtol=1e-5, atol=1e-5)


def test_oscillator_starts_in_the_box_and_keeps_its_invariant():
    ts, z = read(DATA / "oscillator.csv", "x", "y")
    assert (ts[0], ts[-1]) == (0, 10)
    assert z[:, 0].min() > -0.6 and z[:, 0].max() < 1
    assert z[:, 0].min() < -0.55 and z[:, 0].max() > 0.95
    # dV/dt = g(x) x' + g(y) y' = 0 with V' = g.
    invariant = (z - np.log1p(z)).sum(axis=2)
    np.testing.assert_allclose(invariant, np.broadcast_to(invariant[:, :1], invariant.shape), rtol=1e-5, atol=1e-6)


def test_spiral_winds_inwards():
    _, z = read(DATA / "spiral.csv", "x", "y")
    # d(x^4 + y^4)/dt = -0.4 (x^6 + y^6).
    assert (np.diff((z**4).sum(axis=2), axis=1) < 0).all()
    # x' = 2 y^3 makes the rotation clockwise.
    turned = z[:, :-1, 0] * z[:, 1:, 1] - z[:, :-1, 1] * z[:, 1:, 0]
    assert (turned < 0).all()


def test_pendulum_obeys_its_equation_with_the_torque_in_the_file():
    ts, channels = read(DATA / "pendulum.csv", "angle", "velocity", "torque")
    assert channels.shape == (24, 120, 3)
    rates = derivative(channels, ts[1])
    angle, velocity, torque = np.moveaxis(channels[:, 2:-2], -1, 0)
    np.testing.assert_allclose(rates[..., 0], velocity, atol=0.02)
    swing = torque - 9.81 * np.sin(angle)
    np.testing.assert_allclose(rates[..., 1], swing - 0.5 * velocity, atol=0.06)
    # The tolerance is tight enough to detect the damping and the torque.
    assert np.abs(rates[..., 1] - swing).max() > 0.6
    assert np.abs(rates[..., 1] - swing + torque + 0.5 * velocity).max() > 0.6


def test_undriven_pendulum_loses_the_energy_that_damping_takes():
    def field(t, z):
        # The dissipated energy is a third state.
        rates = generate_data.pendulum_field(z[:, :2], np.zeros(len(z)))
        return np.concatenate([rates, 0.5 * z[:, 1:2] ** 2], axis=1)

    z = generate_data.integrate(field, np.array([[1.5, 0.0, 0.0], [-0.4, 2.0, 0.0]]), np.linspace(0, 12, 100))
    energy = z[..., 1] ** 2 / 2 + 9.81 * (1 - np.cos(z[..., 0]))
    assert (np.diff(energy, axis=1) < 0).all()
    np.testing.assert_allclose(energy + z[..., 2], np.broadcast_to(energy[:, :1], energy.shape), rtol=1e-8)


def test_noise_is_relative_to_each_state_and_leaves_the_rest(tmp_path):
    generate_data.main(["--out", str(tmp_path), "--noise", "0.05"])
    for name, states, rest in (("oscillator", ["x", "y"], ["t"]), ("pendulum", ["angle", "velocity"], ["t", "torque"])):
        clean, noisy = pd.read_csv(DATA / f"{name}.csv"), pd.read_csv(tmp_path / f"{name}.csv")
        np.testing.assert_allclose(clean[rest], noisy[rest], rtol=1e-6, atol=1e-6)
        ratio = (noisy[states] - clean[states]).std() / clean[states].std()
        np.testing.assert_allclose(ratio, 0.05, rtol=0.06)


def test_seed_chooses_the_starts(tmp_path, made):
    generate_data.main(["--out", str(tmp_path), "--seed", "1"])
    for name in generate_data.SYSTEMS.keys() - {"robertson"}:  # It starts as in the paper.
        assert not np.allclose(pd.read_csv(made / f"{name}.csv"), pd.read_csv(tmp_path / f"{name}.csv"))


def test_robertson_keeps_its_mass_and_spans_ten_decades():
    frame = pd.read_csv(DATA / "robertson.csv")
    np.testing.assert_allclose(frame[["y1", "y2", "y3"]].sum(axis=1), 1.0, atol=2e-7)
    assert frame["t"].tolist()[0] == 0 and frame["t"].iloc[-1] / frame["t"].iloc[1] == pytest.approx(1e10)
    # On the slow manifold, the fast reactions of the second species balance.
    y1, y2, y3 = frame[["y1", "y2", "y3"]].to_numpy()[-1]
    assert 0.04 * y1 == pytest.approx(1e4 * y2 * y3 + 3e7 * y2**2, rel=1e-3)


@pytest.mark.parametrize("option", ["noise", "seed"])
def test_negative_options_are_refused(tmp_path, capsys, option):
    with pytest.raises(SystemExit) as stop:
        generate_data.main(["--out", str(tmp_path), f"--{option}", "-1"])
    assert stop.value.code == 2
    assert f"--{option} must not be negative, got -1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_lynx_follows_hare_year_by_year():
    text = (DATA / "lynx_hare.csv").read_text()
    assert text.startswith("#") and "Howard" in text.splitlines()[0]
    frame = pd.read_csv(DATA / "lynx_hare.csv", comment="#")
    assert list(frame.columns) == ["year", "hare", "lynx"]
    assert frame["year"].tolist() == list(range(1900, 1921))
    assert (frame[["hare", "lynx"]].to_numpy() > 0).all()
    # The predator's cycle lags the prey's by a year or two.
    hare, lynx = np.log(frame[["hare", "lynx"]].to_numpy()).T
    correlation = {lag: np.corrcoef(hare[3 - lag : 18 - lag], lynx[3:18])[0, 1] for lag in range(-3, 4)}
    assert max(correlation, key=lambda lag: correlation[lag]) in (1, 2)


@pytest.mark.slow
def test_the_driven_records_are_those_of_their_script(tmp_path):
    script = ROOT / "scripts" / "datasets" / "generate_driven.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True)
    for name in ("duffing", "motor", "house"):
        again = pd.read_csv(tmp_path / f"{name}.csv")
        pd.testing.assert_frame_equal(pd.read_csv(DATA / f"{name}.csv"), again, rtol=1e-3, atol=1e-3)
