"""Losses of residuals in which outliers count less."""

import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from scipy.integrate import quad

import node_fit as nf
from node_fit.app.config.build import build
from node_fit.data.noise import local_noise
from node_fit.objectives.matching import UNSOLVED, misfit
from node_fit.objectives.objective import Target
from node_fit.runtime.placement import carry, scope

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "conf"
LOSSES = [nf.Squares(), nf.Huber(), nf.Huber(threshold=0.5), nf.StudentT(), nf.StudentT(degrees=1.0)]
RATES = {"a": 1.5, "b": 0.4}
FIELD = functools.partial(
    nf.Known,
    equations={"x": "-a*x + b*y", "y": "a*x - b*y - 0.2*y"},
    constants={"a": [1.0, 0.0, None], "b": [1.0, 0.0, None]},
)
OPTIONS = {
    "field": FIELD,
    "start": functools.partial(nf.Fitted, given=None),
    "recipe": "direct",
    "solver": nf.Solver("heun"),
    "precision": "x64",
    "ridge": 0.0,
    "steps": 100,
}


def reactions(seed=0, outliers=0.1, noise=0.02, sigma=None) -> nf.Dataset:
    """Two substances that turn into each other, 30 rows; a share of the values is off by up to 2."""
    from jax.scipy.linalg import expm

    rng = np.random.default_rng(seed)
    ts = np.linspace(0.0, 4.0, 30)
    a, b = RATES.values()
    exact = np.stack([np.asarray(expm(t * np.array([[-a, b], [a, -b - 0.2]]))) @ [1.0, 0.2] for t in ts])
    ys = exact + noise * rng.standard_normal(exact.shape)
    ys += np.where(rng.random(exact.shape) < outliers, rng.uniform(0.5, 2.0, exact.shape), 0.0)
    return nf.Dataset.from_arrays(ts, ys, states=["x", "y"], sigma=sigma)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_is_the_logarithm_of_a_density(loss):
    z = np.array([-40.0, -1.4, -0.3, -1e-9, 0.0, 1e-3, 0.49, 0.51, 3.0, 500.0])
    with scope("x64"):
        root = np.asarray(jnp.asarray(z) * loss.factor(jnp.asarray(z)))
        slope = np.asarray(jax.vmap(jax.grad(lambda z: (z * loss.factor(z)) ** 2 / 2))(jnp.asarray(z)))
    np.testing.assert_allclose(
        loss.log_density(z) - loss.log_density(np.zeros(1)), -(root**2) / 2, rtol=1e-9, atol=1e-15
    )
    psi, curve = loss.influence(z)
    np.testing.assert_allclose(psi, slope, rtol=1e-6, atol=1e-12)
    step = 1e-6
    np.testing.assert_allclose(
        curve, (loss.influence(z + step)[0] - loss.influence(z - step)[0]) / (2 * step), atol=1e-6
    )
    whole = 2 * sum(
        quad(lambda z: float(np.exp(loss.log_density(np.array([z])))[0]), *ends)[0]
        for ends in ((0, 0.5), (0.5, 1.345), (1.345, 20), (20, np.inf))
    )
    assert whole == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("loss", [nf.Huber(), nf.StudentT()], ids=repr)
def test_gradients_against_finite_differences(loss):
    data = reactions()
    with scope("x64"):
        objective = nf.TrajectoryMatching(nf.Penalty(), nf.Solver("heun"), residual_loss=loss)
        model = carry(nf.make_model(data, field=FIELD, key=jax.random.key(0)), np.float64)
        batch = objective.prepare(data, model)
        target = carry(Target(batch, objective.first_grid(batch), np.zeros(())), np.float64)

        @jax.jit
        def value(raw):
            return objective.loss(eqx.tree_at(lambda m: m.field.constants.raw, model, raw), None, target).value

        raw, step = jnp.asarray(model.field.constants.raw), 1e-5
        slope = jax.grad(value)(raw)
        for index in range(2):
            off = step * jnp.eye(2)[index]
            assert slope[index] == pytest.approx(float((value(raw + off) - value(raw - off)) / (2 * step)), rel=1e-6)


def test_a_huge_threshold_is_least_squares():
    data = reactions()
    residuals = []
    with scope("x64"):
        model = carry(nf.make_model(data, field=FIELD, key=jax.random.key(0)), np.float64)
        for loss in (nf.Squares(), nf.Huber(threshold=1e9)):
            objective = nf.TrajectoryMatching(nf.Penalty(), nf.Solver("heun"), residual_loss=loss)
            batch = objective.prepare(data, model)
            target = carry(Target(batch, objective.first_grid(batch), np.zeros(())), np.float64)
            residuals.append(np.asarray(objective.residuals(model, None, target).values))
    np.testing.assert_array_equal(*residuals)
    clean, converged = reactions(outliers=0.0), {**OPTIONS, "steps": 300}
    ordinary = fit_to(clean, **converged).model.constants()
    for loss in (nf.Huber(threshold=1e9), nf.StudentT(degrees=1e9)):
        assert fit_to(clean, loss=loss, **converged).model.constants() == pytest.approx(ordinary, rel=1e-5)


def off(fit) -> float:
    return float(np.sqrt(np.mean([np.log(fit.model.constants()[name] / value) ** 2 for name, value in RATES.items()])))


@pytest.mark.parametrize("optimizer", [nf.LBFGS(), nf.LevenbergMarquardt()], ids=["lbfgs", "lm"])
def test_outliers_hardly_move_the_constants(optimizer):
    """A tenth of the values is far off; the constants are several times nearer than those of least squares."""
    errors = {"squares": [], "huber": [], "student": []}
    for seed in range(4):
        for name, loss in (("squares", nf.Squares()), ("huber", nf.Huber()), ("student", nf.StudentT())):
            errors[name].append(off(fit_to(reactions(seed), loss=loss, optimizer=optimizer, **OPTIONS)))
    worst = {name: np.sqrt(np.mean(np.square(each))) for name, each in errors.items()}
    assert worst["huber"] < worst["squares"] / 3 and worst["student"] < worst["squares"] / 3
    clean = off(fit_to(reactions(outliers=0.0), loss=nf.Huber(), optimizer=optimizer, **OPTIONS))
    assert clean < 0.1


def test_intervals_and_likelihood_of_a_robust_fit():
    """The intervals cover the constants; on normal noise they and the likelihood are about those of least squares."""
    fit = fit_to(reactions(2), loss=nf.Huber(), **OPTIONS)
    found = fit.confidence()
    for name, value in RATES.items():
        assert found.constants[name].lower < value < found.constants[name].upper
    assert not any("standard errors from its optimum" in note for note in found.notes)
    with pytest.raises(ValueError, match="use confidence=fisher"):
        fit.confidence("profile")
    student, ordinary = (fit_to(reactions(2), loss=loss, **OPTIONS) for loss in (nf.StudentT(), nf.Squares()))
    assert student.likelihood().aic < ordinary.likelihood().aic - 20, "outliers are what its density expects"
    clean = reactions(outliers=0.0, sigma=0.02)
    least, robust = (fit_to(clean, loss=loss, **OPTIONS) for loss in (nf.Squares(), nf.Huber()))
    errors = [each.confidence().constants["a"].standard_error for each in (least, robust)]
    assert errors[1] == pytest.approx(errors[0], rel=0.3)
    assert robust.likelihood().nll == pytest.approx(least.likelihood().nll, abs=8)


def test_a_trajectory_that_can_t_be_solved_is_no_outlier():
    data = reactions()
    with scope("x64"):
        model = carry(nf.make_model(data, field=FIELD, key=jax.random.key(0)), np.float64)
        objective = nf.TrajectoryMatching(residual_loss=nf.StudentT())
        batch = objective.prepare(data, model)
        gone = misfit(model, batch, jnp.full((1, 30, 2), jnp.nan), nf.StudentT())
    assert (np.asarray(gone) == UNSOLVED).all()


def test_noise_between_neighbours():
    rng = np.random.default_rng(0)
    ts = np.sort(rng.uniform(0, 6, (3, 200)), axis=1)
    noise = 0.05 * rng.standard_normal((3, 200))
    assert local_noise(ts, np.sin(ts) + noise) == pytest.approx(0.05, rel=0.15)
    gross = np.where(rng.random((3, 200)) < 0.1, 3.0, 0.0)
    assert local_noise(ts, np.sin(ts) + noise + gross) < 0.1
    assert np.isnan(local_noise(ts[:, :3], noise[:, :3] * np.nan))
    data = nf.Dataset.from_arrays([0.0, 1.0], np.ones((2, 1)), states=["x"])
    with pytest.raises(ValueError, match="sigma is needed with a robust loss"):
        fit_to(data, field=nf.Linear, loss=nf.Huber(), recipe="direct", steps=1)


@pytest.mark.parametrize(("name", "expected"), [("squares", nf.Squares), ("huber", nf.Huber), ("student", nf.StudentT)])
def test_the_config_names_them(name, expected):
    OmegaConf.register_new_resolver("shipped", str, replace=True)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", [f"loss={name}"])
    assert build(config.loss, "loss") == expected()


@pytest.mark.parametrize("make", [lambda: nf.Huber(threshold=0.0), lambda: nf.StudentT(degrees=0.5)])
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
