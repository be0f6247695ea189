"""A fit as an estimator of scikit-learn: its conventions, searches over options, and trajectories as groups."""

import functools
import pickle
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import node_fit as nf

QUICK = {"effort": "quick", "recipe": "direct", "start": "first", "solver": nf.Solver("heun")}


def decays(rate: float = 0.7, inputs: bool = True, noise: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Three records of a decay to an input, whose rows are mixed."""
    rng = np.random.default_rng(0)
    rows = []
    for name, first, level in (("a", 3.0, 1.0), ("b", -1.0, 0.5), ("c", 2.0, 0.0)):
        for t in np.linspace(0, 4, 21):
            x = level + (first - level) * np.exp(-rate * t) + noise * rng.normal()
            rows.append({"run": name, "hours": t, "level": level, "x": x})
    frame = pd.DataFrame(rows).sample(frac=1.0, random_state=1)
    return frame[["run", "hours", *(["level"] if inputs else [])]], frame[["x"]]


@pytest.fixture
def exact(monkeypatch):
    """Fits that cost nothing: the true equations are their result."""

    def give(train, **options):
        name, target = train.states[0], train.inputs[0] if train.inputs else "0"
        field = functools.partial(nf.Known, equations={name: f"k*({target} - {name})"}, constants={"k": 0.7})
        model = nf.make_model(train, field=field, key=jax.random.key(0))
        return SimpleNamespace(model=model, data={"train": train}, constants=model.constants())

    monkeypatch.setattr("node_fit.ecosystem.regressor.fit", give)


def known(**options) -> nf.Regressor:
    field = functools.partial(nf.Known, equations={"x": "k*(level - x)"}, constants={"k": 0.3})
    return nf.Regressor(time="hours", trajectory="run", field=field, steps=30, precision="x64", **QUICK | options)


@pytest.mark.slow
def test_a_known_decay_is_recovered_and_predicted():
    X, y = decays()
    model = known().fit(X, y)
    assert model.fit_.constants["k"] == pytest.approx(0.7, rel=1e-3)
    assert model.n_features_in_ == 3 and model.feature_names_in_.tolist() == ["run", "hours", "level"]
    assert model.score(X, y) > 0.9999
    np.testing.assert_allclose(model.predict(X), y.to_numpy(), atol=1e-2)
    part = X[X["run"] == "b"].iloc[:5]
    np.testing.assert_allclose(model.predict(part), y.loc[part.index].to_numpy(), atol=1e-2)


def test_a_new_trajectory_begins_with_its_first_row(exact):
    X, y = decays()
    model = known().fit(X[X["run"] != "c"], y[X["run"] != "c"])
    new, measured = X[X["run"] == "c"], y[X["run"] == "c"]
    assert model.score(new, measured) > 0.999
    begun = model.predict(new)[new["hours"].to_numpy().argmin(), 0]
    assert begun == pytest.approx((3.0 - 1.0) / 2), "the mean of the starts, where y is not given"


def test_groups_name_trajectories_as_a_column_does(exact):
    X, y = decays()
    arrays = X[["hours", "level"]].to_numpy()
    model = known().set_params(time=0, trajectory=None)
    with pytest.raises(ValueError, match="groups has 2 entries, but X has 63 rows"):
        model.fit(arrays, y, groups=["a", "b"])
    found = model.fit(arrays, y, groups=X["run"])
    assert found.fit_.data["train"].trajectories == tuple(dict.fromkeys(X["run"]))
    np.testing.assert_allclose(found.predict(arrays, groups=X["run"]), y.to_numpy(), atol=1e-4)
    assert found.score(arrays, y, groups=X["run"]) > 0.9999


def test_one_axis_in_one_axis_out_and_gaps_are_no_measurements(exact):
    X, y = decays(inputs=False)
    one, values = X[X["run"] == "c"][["hours"]], y[X["run"] == "c"]["x"].to_numpy().copy()
    values[3] = np.nan
    model = nf.Regressor().fit(one, values)
    assert model.predict(one).shape == (21,) and model.score(one, values) > 0.9999
    twice = nf.Regressor().fit(np.repeat(one.to_numpy(), 2, axis=0), np.repeat(values, 2) + np.tile([0.5, -0.5], 21))
    means = twice.predict(one.to_numpy())
    np.testing.assert_allclose(means, model.predict(one), atol=1e-5, err_msg="of rows at one time")


def test_parameters_are_got_set_and_cloned():
    model = known(ridge=0.1)
    params = model.get_params()
    assert params["ridge"] == 0.1 and params["time"] == "hours" and params["steps"] == 30
    copy = clone(model).set_params(ridge=0.2, window=None, random_state=3)
    options = copy.fit_options
    assert (options.penalty.ridge, options.training.steps, options.seed, options.effort) == (0.2, 30, 3, "quick")
    assert known().set_params(options=nf.Options(restarts=4)).fit_options.restarts == 4
    assert "Regressor(" in repr(model) and not hasattr(model, "fit_")


@pytest.mark.slow
def test_a_fitted_one_is_pickled():
    X, y = decays()
    model = nf.Regressor(time="hours", trajectory="run", field="linear", steps=5, **QUICK).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


WRONG = {
    "column": ({"time": "t"}, "time names the column 't', but those of X are run, hours, level"),
    "number": ({"trajectory": 7}, "trajectory=7 is no column of X, which has 3"),
    "input": ({"inputs": ["u"]}, "inputs names the column 'u'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_columns_get_a_sentence(case):
    options, says = WRONG[case]
    with pytest.raises(ValueError, match=says):
        known().set_params(**options).fit(*decays())


def test_before_a_fit_there_is_no_prediction():
    X, y = decays()
    with pytest.raises(NotFittedError):
        known().predict(X)
    with pytest.raises(ValueError, match="X has 63 rows, but y has 62"):
        known().fit(X, y.iloc[:-1])


@pytest.mark.slow
def test_a_grid_search_finds_the_better_field():
    """Two levels of a ridge that is far too strong, and one that is not, over folds of whole trajectories."""
    X, y = decays(noise=0.01)
    model = nf.Regressor(time="hours", trajectory="run", field="linear", steps=200, **QUICK)
    search = GridSearchCV(model, {"ridge": [1e-4, 1e4]}, cv=GroupKFold(3), error_score="raise")
    search.fit(X, y, groups=X["run"])
    # Each fold has to tell the effect of a level that it has not seen, from two others.
    good, bad = search.cv_results_["mean_test_score"]
    assert search.best_params_ == {"ridge": 1e-4} and good > 0.5 > bad
    assert search.best_estimator_.score(X, y) > 0.99
    piped = make_pipeline(FunctionTransformer(), model).fit(X, y)
    assert piped.score(X, y) > 0.99


def checks() -> list:
    """scikit-learn's checks, of those that fit none; and those of a few quick fits, which are slow."""
    model = nf.Regressor(field="linear", steps=2, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(estimator_checks_generator(model, legacy=True))
    return [
        pytest.param(each, check, id=f"{at} {name_of(check)}", marks=marks_of(check))
        for at, (each, check) in enumerate(found)
    ]


def name_of(check) -> str:
    return getattr(check, "func", check).__name__


def marks_of(check):
    return () if name_of(check) in WITHOUT_FITS else pytest.mark.slow


WITHOUT_FITS = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_complex_data",
    "check_estimators_empty_data_messages",
    "check_estimator_sparse_tag",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_scikit_learns_checks(estimator, check):
    check(estimator)
