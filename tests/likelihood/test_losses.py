"""Likelihoods: densities against SciPy's, rows whose squares are deviances, derivatives that stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import node_fit as nf
from node_fit.likelihood.losses import (
    LEAST_SCALE,
    LOSSES,
    Laplace,
    NegativeBinomial,
    Poisson,
    Predictors,
    Squares,
    StudentT,
    differentiate_likelihood,
)

COUNTS = np.array([0.0, 1.0, 3.0, 10.0, 200.0])
MEANS = np.array([0.5, 2.0, 3.0, 30.0, 150.0])
OFF = np.array([-30.0, -1.0, 0.0, 0.4, 30.0])
EXACT = np.zeros(5)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def counts(means=MEANS, dispersion=None):
    shapes = () if dispersion is None else (jnp.full(5, jnp.log(dispersion)),)
    return Predictors(jnp.log(means), jnp.zeros(5), shapes, jnp.asarray(COUNTS), EXACT)


def distances(off=OFF, sigma=0.5, censored=EXACT, degrees=None):
    shapes = () if degrees is None else (jnp.full(5, jnp.log(degrees)),)
    return Predictors(jnp.asarray(off), jnp.full(5, jnp.log(sigma)), shapes, jnp.zeros(5), jnp.asarray(censored, float))


@pytest.mark.parametrize(
    ("loss", "at", "reference"),
    [
        (Poisson(), lambda: counts(), stats.poisson.logpmf(COUNTS, MEANS)),
        (
            NegativeBinomial(),
            lambda: counts(dispersion=0.3),
            stats.nbinom.logpmf(COUNTS, 1 / 0.3, 1 / (1 + 0.3 * MEANS)),
        ),
        (Squares(), lambda: distances(), stats.norm.logpdf(OFF, scale=0.5)),
        (Squares(), lambda: distances(censored=EXACT - 1), stats.norm.logcdf(-OFF, scale=0.5)),
        (Squares(), lambda: distances(censored=EXACT + 1), stats.norm.logsf(-OFF, scale=0.5)),
        (StudentT("fitted"), lambda: distances(degrees=2.5), stats.t.logpdf(OFF, 2.5, scale=0.5)),
        (StudentT(), lambda: distances(), stats.t.logpdf(OFF, 4.0, scale=0.5)),
        (Laplace(), lambda: distances(OFF + 0.1), stats.laplace.logpdf(OFF + 0.1, scale=0.5)),
    ],
    ids=["poisson", "negative binomial", "normal", "below", "above", "fitted degrees", "student", "laplace"],
)
def test_density(loss, at, reference):
    np.testing.assert_allclose(-loss.negative_log(at()), reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Squares(), (1.0, 2.0)),
        (Laplace(), (1.0, 1.0)),
        (StudentT(), (5 / 7, 8 / 7)),  # (nu + 1)/(nu + 3) and 2 nu/(nu + 3)
        (nf.Huber(), None),
    ],
    ids=["normal", "laplace", "student", "huber"],
)
def test_information_is_the_mean_square_of_the_score(loss, expected):
    if expected is None:
        z = np.linspace(-40, 40, 2_000_001)
        weight = np.exp(loss.log_density(z)) * (z[1] - z[0])
        slope = loss.influence(z)[0]
        expected = (weight * slope**2).sum(), (weight * (z * slope - 1) ** 2).sum()
    assert loss.information() == pytest.approx(expected, rel=1e-6)


def moved(at, by):
    return at._replace(location=at.location + by)


@pytest.mark.parametrize(
    ("loss", "at", "has_scale"),
    [
        (Poisson(), lambda: counts(), False),
        (NegativeBinomial(), lambda: counts(dispersion=0.3), False),
        (Squares(), lambda: distances(censored=[-1, 1, 0, -1, 1]), False),
        (Squares(), lambda: distances(), True),
        (StudentT("fitted"), lambda: distances(degrees=2.5), True),
        (nf.Huber(), lambda: distances(), True),
        (Laplace(), lambda: distances(OFF + 0.1), True),
    ],
)
def test_rows_are_the_likelihood_up_to_a_constant(loss, at, has_scale):
    """So a search for least squares finds its maximum."""
    at = at()

    def half_of_squares(at):
        return sum(row**2 for row in loss.all_rows(at, has_scale=has_scale)) / 2

    varied = [moved(at, 0.3), moved(at, 1e-5), at._replace(shapes=tuple(each + 0.2 for each in at.shapes))]
    if has_scale:
        varied.append(at._replace(log_scale=at.log_scale + 0.4))
    for other in varied:
        rise = loss.negative_log(other) - loss.negative_log(at)
        np.testing.assert_allclose(half_of_squares(other) - half_of_squares(at), rise, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_derivatives_are_finite_where_predictions_are_exact_or_far(loss):
    at = (
        counts(COUNTS + 1e-10, 0.1 if loss.shapes else None)
        if loss.is_count
        else distances([-1e3, 0.0, 0.0, 1e-9, 1e3])
    )
    columns = [at] if loss.is_count else [at, at._replace(censored=jnp.array([-1.0, -1, 1, 1, 1]))]
    for each in columns:
        found = differentiate_likelihood(loss, each)
        assert np.isfinite(found.gradient).all() and np.isfinite(found.hessian).all()
        slopes = jax.jacfwd(lambda x, each=each: jnp.stack(loss.rows(each._replace(location=x))))(each.location)
        assert np.isfinite(slopes).all()


def test_location_has_no_curvature_below_zero_where_the_likelihood_is_concave():
    for loss, at in ((Poisson(), counts()), (NegativeBinomial(), counts(dispersion=0.3))):
        hessian = differentiate_likelihood(loss, at).hessian[0, 0]
        assert (hessian > 0).all()
        assert loss.curvature(at.location, at.shapes) == pytest.approx(MEANS / (1 + (0.3 if at.shapes else 0) * MEANS))


def test_spread_is_the_standard_deviation():
    assert Poisson().spread(counts()) == pytest.approx(np.sqrt(MEANS))
    assert NegativeBinomial().spread(counts(dispersion=0.3)) == pytest.approx(np.sqrt(MEANS + 0.3 * MEANS**2))


def test_row_of_scale_never_ends():
    """A noise that vanishes has a row, too."""
    rows = Squares().all_rows(distances(sigma=LEAST_SCALE), has_scale=True)
    assert np.isfinite(rows[1]).all() and (rows[1] > 0).all()


def test_degrees():
    assert StudentT().shapes == () and StudentT("fitted").shapes == ("degrees",)
    with pytest.raises(ValueError, match="degrees must be a number or fitted"):
        StudentT("many")


@pytest.mark.parametrize("loss", [Squares(), nf.Huber(), nf.Huber(threshold=0.7), StudentT(), StudentT(8.0)])
def test_a_density_has_the_mass_one(loss):
    z = np.linspace(0, 300, 3_000_001)
    assert 2 * np.trapezoid(np.exp(loss.log_density(z)), z) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("loss", "dispersion"), [(Poisson(), None), (NegativeBinomial(), 0.3)])
def test_rows_near_a_count_go_on_as_those_away_from_it(loss, dispersion):
    """Beside the count the row is its first term, which must have the slope of the root of the deviance."""
    near, away = (np.asarray(loss.rows(counts(COUNTS * np.exp(off), dispersion))[0]) for off in (0.9e-3, 1.1e-3))
    assert (near / away)[1:] == pytest.approx(9 / 11, rel=2e-3)
