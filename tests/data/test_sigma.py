"""Standard deviations of measurements weight the residuals, so that the optimum is the most likely one."""

import functools

import numpy as np
import pandas as pd
import pytest
from helpers.problems import fit_to

import node_fit as nf
from node_fit.app.run_directory import fingerprint_data
from node_fit.data.scaling import Scaler

TS = np.linspace(0.0, 2.0, 9)
RATE = functools.partial(nf.Known, equations={"x": "k", "y": "k"}, constants={"k": 1.0})
OPTIONS = {"recipe": "direct", "solver": nf.Solver("heun"), "precision": "x64", "ridge": 0.0, "steps": 50}


def two_lines(sigma=None) -> nf.Dataset:
    """Two straight lines of which one is far less sure, and says another slope."""
    rng = np.random.default_rng(0)
    noise = np.array([0.01, 1.0]) * rng.standard_normal((9, 2))
    ys = TS[:, None] * np.array([1.0, 3.0]) + noise
    ys[0] = 0.0
    return nf.Dataset.from_arrays(TS, ys, states=("x", "y"), sigma=sigma)


def weighted_slope(data: nf.Dataset, sigma) -> float:
    weight = np.broadcast_to(1 / np.square(sigma), (9, 2))
    return float((weight * TS[:, None] * data.ys[0]).sum() / (weight * TS[:, None] ** 2).sum())


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [[0.3, 1.0], 0.2, np.linspace(0.1, 1.0, 18).reshape(9, 2)])
def test_the_optimum_is_that_of_weighted_least_squares(sigma):
    data = two_lines(sigma)
    fit = fit_to(data, field=RATE, start="first", **OPTIONS)
    assert fit.model.constants()["k"] == pytest.approx(weighted_slope(data, sigma), rel=1e-6)
    found = fit.likelihood()
    chi2 = (np.square((data.ys[0] - fit.model.constants()["k"] * TS[:, None]) / sigma)[1:]).sum()
    assert found.chi2_per_dof == pytest.approx(chi2 / (16 - 1), rel=1e-6)
    logs = np.log(np.broadcast_to(sigma, (9, 2))[1:]).sum() + 8 * np.log(2 * np.pi)
    assert found.nll == pytest.approx(chi2 / 2 + logs, rel=1e-6)
    assert (found.values, found.parameters) == (16, pytest.approx(1))


def test_validation_losses_are_weighted_too():
    data, options = two_lines([0.01, 1.0]), {**OPTIONS, "field": "linear"}
    fit = fit_to(data, validation=two_lines([1e3, 1.0]), **options)
    unsure = fit_to(data, validation=two_lines([1.0, 1.0]), **options)
    assert fit.history[-1].validation_loss > 1.1 * unsure.history[-1].validation_loss


def test_the_likelihood_of_estimated_noise_is_that_of_a_regression():
    data = two_lines()
    fit = fit_to(data, field=RATE, start="first", **OPTIONS)
    scale = Scaler.from_dataset(data).state_scale
    off = ((data.ys[0] - fit.model.constants()["k"] * TS[:, None]) / scale)[1:]
    deviation = np.sqrt((off**2).mean()) * np.broadcast_to(scale, off.shape)
    nll = 8 + np.log(deviation).sum() + 8 * np.log(2 * np.pi)
    found = fit.likelihood()
    assert (found.nll, found.aic) == pytest.approx((nll, 2 * nll + 4), rel=1e-6)
    assert found.bic == pytest.approx(2 * nll + 2 * np.log(16), rel=1e-6)
    assert found.chi2_per_dof is None


@pytest.mark.slow
def test_sigma_of_a_logarithm_is_a_share_of_the_value():
    ys = np.exp(two_lines().ys[0])
    data = nf.Dataset.from_arrays(TS, ys, states=("x", "y"), sigma=[0.3, 1.0])
    field = functools.partial(nf.Known, equations={"x": "k*x", "y": "k*y"}, constants={"k": 1.0})
    fit = fit_to(data, field=field, log=["x", "y"], start="first", **OPTIONS)
    assert fit.model.constants()["k"] == pytest.approx(weighted_slope(two_lines(), [0.3, 1.0]), rel=1e-5)
    off = (np.log(ys) - fit.model.constants()["k"] * TS[:, None])[1:] / [0.3, 1.0]
    logs = 8 * np.log(0.3) + 8 * np.log(2 * np.pi) + np.log(ys[1:]).sum()
    assert fit.likelihood().nll == pytest.approx((off**2).sum() / 2 + logs, rel=1e-5), "a density of the values"


def test_sigma_stays_with_its_measurements():
    sigma = np.arange(1.0, 19.0).reshape(1, 9, 2)
    data = two_lines(sigma)
    assert data.windows(4, 3).sigma[1].tolist() == sigma[0, 3:7].tolist()
    assert data.after(1.0).sigma[0].tolist() == sigma[0, 5:].tolist()
    assert data.select([0, 0]).sigma.shape == (2, 9, 2)
    assert (
        fingerprint_data(data)["sha256"]
        != fingerprint_data(two_lines(1.0))["sha256"]
        != fingerprint_data(two_lines())["sha256"]
    )


def frame() -> pd.DataFrame:
    return pd.DataFrame({"t": TS, "x": TS, "y": TS, "sd": np.linspace(0.1, 0.9, 9)})


def test_a_column_holds_standard_deviations(tmp_path):
    data = nf.from_frame(frame(), time="t", states=["x", "y"], sigma={"x": 2.0, "y": "sd"})
    assert data.states == ("x", "y")
    assert data.sigma[0].T.tolist() == [[2.0] * 9, frame()["sd"].tolist()]
    frame().to_csv(tmp_path / "data.csv", index=False)
    table = nf.Table(str(tmp_path / "data.csv"), "t", ["x", "y"], sigma={"x": 2.0, "y": "sd"})
    assert (table.load().train.sigma[0, :, 1] == frame()["sd"][: table.load().train.lengths[0]]).all()
    assert (nf.read_table(tmp_path / "data.csv", time="t", states=["x"], sigma=0.5).sigma == 0.5).all()


@pytest.mark.parametrize(
    "sigma, text",
    [
        ("guess", "sigma must be estimate, a positive number, or"),
        (-1.0, "sigma must be estimate, a positive number, or"),
        ({"x": 1.0}, "sigma has no entry for the state 'y'"),
        ({"x": 1.0, "yy": 1.0}, "did you mean 'y'"),
        ({"x": 1.0, "y": 0}, "sigma of 'y' must be a positive number, the name of a column, or .*, got 0"),
        ({"x": 1.0, "y": "se"}, "no column 'se'"),
        ({"x": 1.0, "y": "t"}, "named twice"),
    ],
)
def test_a_wrong_sigma_gets_a_sentence(sigma, text):
    with pytest.raises(ValueError, match=text):
        nf.from_frame(frame(), time="t", states=["x", "y"], sigma=sigma)


def test_a_deviation_that_is_missing_or_not_positive_names_its_row():
    wrong = frame().assign(sd=[1.0] * 4 + [0.0] + [1.0] * 4)
    with pytest.raises(ValueError, match="that of 'y' in trajectory '0' is 0 at row 4"):
        nf.from_frame(wrong, time="t", states=["x", "y"], sigma={"x": 1.0, "y": "sd"})
    with pytest.raises(ValueError, match="pass a number, 2 numbers, or the shape of ys"):
        two_lines([1.0, 2.0, 3.0])


def test_a_relative_and_an_absolute_part_add_as_independent_noises():
    frame = pd.DataFrame({"t": TS, "x": np.linspace(0.0, 4.0, 9), "y": 1.0})
    given = {"x": {"relative": 0.3, "absolute": 0.4}, "y": {"relative": 0.1}}
    data = nf.from_frame(frame, time="t", states=["x", "y"], sigma=given)
    np.testing.assert_allclose(data.sigma[0, :, 0], np.sqrt(0.16 + 0.09 * frame["x"] ** 2))
    np.testing.assert_allclose(data.sigma[0, :, 1], 0.1)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"relativ": 0.1}, r"sigma of 'x' must be .*\{relative: 0\.05, absolute: 0\.1\}, got \{'relativ': 0\.1\}"),
        ({}, r"sigma of 'x' must be"),
        ({"relative": -0.1}, r"the relative part of sigma of 'x' must be a positive number, got -0\.1"),
        (
            {"relative": 0.1},
            r"sigma must be positive where a state was measured; that of 'x' in trajectory '0' is 0 at row 0",
        ),
    ],
)
def test_parts_that_say_nothing_are_refused(given, says):
    frame = pd.DataFrame({"t": TS, "x": np.linspace(0.0, 4.0, 9)})
    with pytest.raises(ValueError, match=says):
        nf.from_frame(frame, time="t", states=["x"], sigma={"x": given})
