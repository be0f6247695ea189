"""Which of two fits is better, and why another is tried: the rules alone, on fits that were never made."""

import dataclasses
import math
from unittest.mock import Mock, patch

import numpy as np
import pytest

import node_fit as nf
from node_fit.fitting import ladder
from node_fit.fitting.ladder import Attempt, Judged, best_of, wants_more, why_more
from node_fit.fitting.result import Fit


def judged(
    error: float, verdict: str = "poor", *, name: str = "as chosen", evidence=None, validated=True, size=10, **more
):
    """An attempt of an error, of fits to 200 values with or without validation data."""
    ys = np.ones((1, 200, 1))
    train = Mock(spec=nf.Dataset, ys=ys, mask=ys > 0, lengths=np.array([200]))
    data = {"train": train} | ({"validation": Mock(mask=np.ones((1, 200, 1), bool))} if validated else {})
    model = Mock(typical=Mock(field=object()))
    fit = Mock(spec=Fit, data=data, parameters=size, model=model)
    attempt = Attempt(
        name, verdict, more.get("train", error), error if validated else None, evidence, more.get("horizon"), 0.0
    )
    return Judged(fit, attempt, error)


@pytest.fixture(autouse=True)
def without_hidden_starts(monkeypatch):
    monkeypatch.setattr(ladder, "has_hidden_starts", lambda fit: False)


@pytest.mark.parametrize(
    ("verdict", "error", "content"),
    [
        ("good", 0.5, True),
        ("close", 0.09, True),
        ("close", 0.11, False),  # more than noise is left, and not a little of it
        ("poor", 0.01, False),
    ],
)
def test_a_fit_is_enough_by_its_verdict_unless_much_is_left(verdict, error, content):
    found = judged(error, verdict)
    assert found.is_content is content
    assert wants_more([dataclasses.replace(found, runs_away=True)], nf.Options()), "what runs away is no end"
    train = Mock(spec=nf.Dataset, mask=np.ones((1, 199, 1), bool))
    few = dataclasses.replace(found, fit=Mock(spec=Fit, data={"train": train}))
    assert few.is_content is (verdict != "poor"), "several models of few values are tried anyway"
    if verdict == "close" and not content:
        assert why_more(found) == "as chosen has an error of 0.11, and leaves more than noise"


def test_a_network_that_fits_well_and_runs_away_gets_a_linear_path(monkeypatch):
    monkeypatch.setattr(ladder, "may_hold_elsewhere", lambda tried, options: True)
    first = dataclasses.replace(judged(0.01, "good"), runs_away=True)
    assert ladder.beside_linear(nf.Options(), first.fit, [first]) is not None
    poor = judged(0.5, "poor")
    assert ladder.beside_linear(nf.Options(), poor.fit, [poor]) is None


def test_a_fit_is_better_by_two_per_cent():
    assert judged(0.97).beats(judged(1.0)) and not judged(0.99).beats(judged(1.0))
    assert judged(0.97, "good").beats(judged(1.0, "good")) and not judged(0.99, "good").beats(judged(1.0, "good"))


def test_without_held_out_data_a_good_fit_of_few_parameters_is_better():
    large, small = (judged(1.0, "good", validated=False, size=size) for size in (100, 10))
    assert small.beats(large) and not large.beats(small)
    assert judged(0.9, "good", validated=False, size=12).beats(small)


def test_without_held_out_data_the_evidence_decides_by_more_than_one():
    base = judged(1.0, "good", validated=False, evidence=10.0)
    assert judged(2.0, "good", validated=False, evidence=11.5).beats(base)
    assert not judged(0.1, "good", validated=False, evidence=10.5).beats(base)


def test_equations_that_leave_noise_stand_above_evidence_and_evidence_above_none():
    equations = judged(1.0, "good", name="equations", validated=False)
    likely, plain = judged(0.5, "good", validated=False, evidence=1.0), judged(0.5, "good", validated=False)
    poor = judged(1.0, "poor", name="equations", validated=False, evidence=9.0)
    assert [each.standing for each in (equations, likely, plain, poor)] == [2, 1, 0, 0]
    assert equations.beats(likely) and likely.beats(plain) and plain.beats(poor) and not poor.beats(plain)


def test_equations_may_be_a_little_worse_but_only_if_they_leave_noise():
    other = judged(1.0, "good")
    assert judged(1.03, "good", name="equations").beats(other)
    assert not judged(1.03, "poor", name="equations").beats(other)
    assert not judged(1.2, "good", name="equations").beats(other)


def test_hidden_starts_that_fit_the_training_rows_better_are_kept(monkeypatch):
    monkeypatch.setattr(ladder, "has_hidden_starts", lambda fit: True)
    other = judged(1.0, train=1.0)
    assert judged(1.01, train=0.9).beats(other) and not judged(1.01, train=0.99).beats(other)
    assert judged(0.89, train=2.0).beats(other) and not judged(0.95, train=2.0).beats(other)


def test_fits_of_the_same_equations_are_told_apart_by_their_likelihood_alone(monkeypatch):
    monkeypatch.setattr(ladder, "has_same_equations", lambda one, other: True)
    near, far = judged(2.0, "poor"), judged(1.0, "good")
    for each, misfit in ((near, 0.9), (far, 1.0)):
        each.fit.status, each.fit.evidence = "converged", Mock(misfit=misfit)
    assert near.beats(far) and not far.beats(near) and not near.beats(near)
    near.fit.status = "failed"
    assert not near.beats(far)


def test_equations_are_the_same_up_to_constants_on_the_same_rows():
    def fit_of(text, rows=10, field=nf.Known):
        made = Mock(spec=field, has_equations=True, has_network=field is nf.Hybrid)
        made.texts.return_value = {"x": text}
        return Mock(spec=Fit, model=Mock(typical=Mock(field=made)), data={"train": Mock(ys=np.ones((1, rows, 1)))})

    def is_alone(field):
        return not field.has_network

    with patch.object(ladder, "is_equations_alone", is_alone):
        assert ladder.has_same_equations(fit_of("-k*x"), fit_of("-k*x"))
        assert not ladder.has_same_equations(fit_of("-k*x"), fit_of("-k*x**2"))
        assert not ladder.has_same_equations(fit_of("-k*x"), fit_of("-k*x", rows=9))
        assert not ladder.has_same_equations(fit_of("-k*x"), fit_of("-k*x", field=nf.Hybrid))


def climb_with(monkeypatch, again):
    """Climbs one rung above a poor first fit."""
    first = judged(1.0, "poor")
    first.fit.status = "converged"
    monkeypatch.setattr(ladder, "horizon_of", lambda fit: None)
    monkeypatch.setattr(ladder, "judge_attempt", lambda *_: first)
    monkeypatch.setattr(ladder, "wants_more", lambda *_: True)
    rung = ladder.Rung("another way", ("field",), lambda options, fit, tried: options)
    monkeypatch.setattr(ladder, "rungs", lambda *_: [rung])
    monkeypatch.setattr(ladder, "result_of", lambda best, tried: best.fit)
    return ladder.climb(nf.Options(), first.fit, again, "normal", nf.Callback()), first.fit


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, ZeroDivisionError])
def test_an_attempt_that_fails_does_not_cost_the_fit_that_is_there(monkeypatch, caplog, error):
    def fail(*_):
        raise error("no beginning")

    kept, first = climb_with(monkeypatch, fail)
    assert kept is first and "another way: no beginning" in caplog.text


def test_the_first_that_no_later_one_beats_is_the_best():
    tried = [judged(1.0), judged(0.99), judged(0.9), judged(0.95), judged(math.inf)]
    assert best_of(tried) is tried[2]


@pytest.mark.parametrize(
    ("train", "validation", "is_overfitted"), [(1.0, 1.4, False), (1.0, 1.6, True), (1.0, math.nan, True)]
)
def test_a_fit_that_is_clearly_worse_on_validation_data_is_overfitted(train, validation, is_overfitted):
    assert Attempt("a", "poor", train, validation, None, None, 0.0).is_overfitted == is_overfitted


def test_why_another_fit_is_made(monkeypatch):
    assert why_more(judged(1.0, "poor")) == "as chosen is poor"
    assert why_more(judged(1.0, "good", horizon=50)) == "the record is chaotic, so that windows are fitted"
    for rule, says in (
        ("is_few", "few rows"),
        ("reads_past", "hidden states"),
        ("has_hidden_starts", "other constants"),
    ):
        for name in ("is_few", "reads_past", "has_hidden_starts"):
            monkeypatch.setattr(ladder, name, lambda fit, holds=name == rule: holds)
        monkeypatch.setattr(ladder, "count_hidden", lambda fit: 2)
        assert says in why_more(judged(1.0, "good"))


def with_hidden(judged: Judged, hidden: int, **more) -> Judged:
    judged.fit.options = nf.Options(hidden=hidden, **more)
    judged.fit.data["train"].angles = {}
    return judged


@pytest.mark.parametrize(
    ("verdict", "given", "hidden"),
    [
        ("poor", {}, 1),
        ("overfitted", {}, 1),
        ("good", {}, None),
        ("poor", {"hidden": 0}, None),
        ("poor", {"start": nf.Fitted}, None),
        ("poor", {"observation": ladder.NetworkReadout}, None),
    ],
    ids=["poor", "overfitted", "good", "hidden given", "start given", "another readout"],
)
def test_a_hidden_state_is_added_to_what_is_not_good(verdict, given, hidden):
    """A missing state looks like overfitting, too: a network follows each trajectory, and none beside it."""
    best = with_hidden(judged(0.6, verdict), 0)
    for rung in (ladder.with_hidden_state, ladder.told_by_first_rows):
        changed = rung(nf.Options(**given), best.fit, [best])
        assert (changed and changed.hidden) == hidden


def test_the_start_of_a_hidden_state_is_read_from_a_quarter_of_the_rows_at_most():
    best = with_hidden(judged(0.6), 0)
    for shortest, rows in ((200, 4), (12, 3), (7, None)):
        best.fit.data["train"].lengths = np.array([shortest, 300])
        changed = ladder.told_by_first_rows(nf.Options(), best.fit, [best])
        assert (changed and changed.start.keywords["rows"]) == rows


def test_another_hidden_state_is_added_only_where_one_has_helped():
    plain = with_hidden(judged(0.6), 0)
    assert ladder.with_another_hidden_state(nf.Options(), plain.fit, [plain]) is None
    for name, start in ((ladder.HIDDEN_STATE, "auto"), (f"hidden state {ladder.TOLD_BY_ROWS}", nf.Encoder)):
        added = with_hidden(judged(0.3, name=name), 1, start=nf.Encoder)
        changed = ladder.with_another_hidden_state(nf.Options(), plain.fit, [plain, added])
        assert changed.hidden == 2 and changed.start == start
        assert ladder.with_hidden_state(nf.Options(), plain.fit, [plain, added]) is None
        worse = with_hidden(judged(0.8, name=name), 1)
        assert ladder.with_another_hidden_state(nf.Options(), plain.fit, [plain, worse]) is None


def test_hidden_states_are_tried_before_polynomials_of_what_is_measured():
    """They can't do it either, and each costs a fit."""
    first = Mock(spec=Fit, options=nf.Options(field=nf.MLP))
    for rows, states in ((50, 1), (5_000, 1), (5_000, 9)):
        train = Mock(spec=nf.Dataset, mask=np.ones((1, rows, states), bool), is_driven=False)
        train.states = tuple(f"x{index}" for index in range(states))
        first.data = {"train": train}
        names = [rung.name for rung in ladder.rungs(nf.Options(), first, None, "normal")]
        hidden = [index for index, name in enumerate(names) if ladder.HIDDEN_STATE in name and "states" not in name]
        assert len(hidden) == 3 and hidden[-1] < names.index("quadratic")
