"""Attempts are compared on the rows that count for all of them, in the spread of the training data."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from helpers.attempts import beats, race_of

import node_fit as nf
from node_fit.fitting import candidates, judge
from node_fit.fitting.comparison import Errors, Misfit, errors_in_common

ROWS = 12
TS = np.arange(float(ROWS))
MOTION = np.exp(-TS / 2)


@pytest.fixture(scope="module")
def doses() -> dict[str, nf.Dataset]:
    """Short responses that start alike, of which the one held out hardly moves."""
    sizes = {"train": np.array([1.0, 2.0, 3.0]), "validation": np.array([0.2])}
    return {
        role: nf.Dataset.from_arrays(TS, sizes[role][:, None, None] * MOTION[:, None], states=["x"]) for role in sizes
    }


def misfits_of(
    doses: dict[str, nf.Dataset], early: float, late: float, given: int, held: float = 1.0
) -> dict[str, Misfit]:
    """The misfits of predictions that are off by shares of the training spread in the first ten rows and after them.

    **Arguments:** `given`: rows that do not count, as those that a start is fitted to. `held`: factor on held-out data.
    """
    found: dict[str, Misfit] = {}
    for role, data in doses.items():
        off = np.where(TS < 10, early, late) * doses["train"].ys.std() * (held if role == "validation" else 1)
        scored = dataclasses.replace(data, scored=data.scored & (given <= TS))
        found[role] = Misfit.of(scored, data.ys + off[:, None], doses["train"])
    return found


def test_errors_are_in_the_spread_of_the_training_data_whatever_the_split(doses):
    errors = Errors.of(misfits_of(doses, 0.3, 0.3, 1))
    assert errors.by_role == pytest.approx({"train": 0.3, "validation": 0.3}) and errors.worst == pytest.approx(0.3)


def test_fits_are_compared_on_the_rows_that_count_for_both(doses):
    first, fitted = misfits_of(doses, 0.5, 0.1, 1), misfits_of(doses, 0.5, 0.2, 10)
    assert Errors.of(first).worst > Errors.of(fitted).worst, "on rows of their own"
    one, other = errors_in_common([first, fitted])
    assert one.worst == pytest.approx(0.1) and other.worst == pytest.approx(0.2)


def test_each_has_its_own_rows_where_no_row_counts_for_both(doses):
    none = {role: dataclasses.replace(each, counts=~each.counts) for role, each in misfits_of(doses, 0, 0, 0).items()}
    own = misfits_of(doses, 0.3, 0.3, 1)
    assert errors_in_common([own, none])[0].by_role == pytest.approx({"train": 0.3, "validation": 0.3})


def test_states_that_never_move_tell_nothing_apart():
    ys = np.stack([MOTION, np.ones(ROWS)], axis=-1)
    data = nf.Dataset.from_arrays(TS, ys, states=["x", "y"])
    misfit = Misfit.of(data, data.ys + np.array([0.0, 1.0]), data)
    assert Errors.of({"train": misfit}).worst == 0


def test_what_is_not_finite_is_infinitely_wrong(doses):
    data = doses["train"]
    misfit = Misfit.of(data, np.full(data.ys.shape, np.nan), data)
    errors = Errors.of({"train": misfit})
    assert errors.worst == math.inf and errors.is_worse_than_mean


@pytest.mark.parametrize(("share", "worse"), [(0.9, False), (3.1, True)])
def test_a_fit_is_worse_than_the_mean_by_its_worst_split(doses, share, worse):
    mean = np.sqrt(np.mean((doses["validation"].ys - doses["train"].ys.mean()) ** 2)) / doses["train"].ys.std()
    misfits = misfits_of(doses, 0.1, 0.1, 0, held=share * mean / 0.1)
    assert Errors.of(misfits).is_worse_than_mean is worse


@pytest.fixture(scope="module")
def fit(doses) -> nf.Fit:
    """A fit that was never trained: what is compared are misfits."""
    model = nf.make_model(doses["train"], key=jax.random.key(0))
    return nf.Fit(model, "completed", "took all steps", [], 0, 1, 0, 0, 0.0, 0.0, data=doses)


def judged(fit: nf.Fit, name: str, misfits: dict[str, Misfit], verdict: str = "poor") -> judge.Judged:
    attempt = judge.Attempt(name, verdict, None, None, None, None, 1.0)
    return judge.with_errors(judge.Judged(fit, attempt, math.inf, misfits), Errors.of(misfits))


def test_the_best_attempt_is_so_on_the_same_rows(doses, fit):
    """The attempt whose start is fitted to ten of twelve rows is judged by two of them, at rest, by itself."""
    first = judged(fit, "as chosen", misfits_of(doses, 0.5, 0.1, 1))
    fitted = judged(fit, "growing windows", misfits_of(doses, 0.5, 0.2, 10))
    assert fitted.error < first.error, "on rows of their own"
    assert judge.find_best([first, fitted]) is first
    better = judged(fit, "linear", misfits_of(doses, 0.1, 0.15, 3))
    assert judge.find_best([first, better]) is better


def test_an_attempt_is_overfitted_by_errors_of_one_scale(doses, fit):
    """What hardly moves has a large error in its own spread, at the same error as the training data."""
    assert not judged(fit, "as chosen", misfits_of(doses, 0.3, 0.3, 1)).attempt.is_overfitted
    assert judged(fit, "as chosen", misfits_of(doses, 0.3, 0.3, 1, held=2.0)).attempt.is_overfitted


def test_what_is_far_worse_than_the_mean_is_kept_only_where_all_are(doses, fit):
    """Whatever else speaks for it, such as being equations that are about as good."""
    lost = judged(fit, judge.SPARSE_EQUATIONS, misfits_of(doses, 0.1, 0.1, 1, held=40.0), "good")
    plain = judged(fit, "linear", misfits_of(doses, 0.9, 0.9, 1))
    assert lost.is_worse_than_mean and not plain.is_worse_than_mean
    assert beats(plain, lost) and not beats(lost, plain)
    assert judge.find_best([lost, plain]) is plain and judge.find_best([plain, lost]) is plain
    also = judged(fit, "linear", misfits_of(doses, 0.1, 0.1, 1, held=50.0))
    assert judge.find_best([lost, also]) is lost


def test_nothing_else_is_tried_where_rows_span_decades_of_time(doses, fit):
    """Other fields would need steps of an implicit method, each of which takes seconds."""
    options = dataclasses.replace(fit.options, field=functools.partial(nf.LogTimeMLP, shortest=1e-5))
    first = judged(dataclasses.replace(fit, options=options), "as chosen", misfits_of(doses, 0.1, 0.1, 1))
    assert candidates.candidates_of(race_of(first)) == ()


def test_nothing_else_is_tried_where_nothing_moves(fit):
    doses = fit.data

    def queue(train):
        alone = dataclasses.replace(fit, data={**doses, "train": train})
        return candidates.candidates_of(race_of(judged(alone, "as chosen", misfits_of(doses, 0.1, 0.1, 1))))

    at_rest = dataclasses.replace(doses["train"], ys=np.full_like(doses["train"].ys, 60.0))
    assert queue(doses["train"]) and not queue(at_rest)


@pytest.mark.parametrize(("rows", "given"), [(5, 1), (12, 3), (30, 7), (50, 10)])
def test_a_fitted_start_leaves_most_rows_of_a_short_trajectory_to_count(rows, given):
    data = nf.Dataset.from_arrays(np.arange(float(rows)), np.ones((rows, 1)), states=["x"])
    assert candidates.count_given(data) == given
    start = candidates.choose_start(nf.Options(), data)
    assert start.func is nf.Fitted and start.keywords == {"given": given}
    assert candidates.choose_start(nf.Options(start="fitted"), data) is nf.Fitted
