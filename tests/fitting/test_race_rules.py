"""Which of two fits is better, and why another is tried: the rules alone, on fits that were never made."""

import dataclasses
import functools
import math
import runpy
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, PropertyMock, patch

import numpy as np
import pytest
from helpers.attempts import beats, race_of

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.discover.individuals import Individuals
from node_fit.fitting import candidates, judge, race
from node_fit.fitting.judge import Attempt, Judged, find_best
from node_fit.fitting.problem import NoEquations
from node_fit.fitting.race import wants_more, why_more
from node_fit.fitting.result import Fit

ROOT = Path(__file__).parents[2]


def judged(
    error: float, verdict: str = "poor", *, name: str = "as chosen", evidence=None, validated=True, size=10, **more
):
    """An attempt of an error, of fits to 200 values with or without validation data."""
    ys = np.linspace(1, 2, 200)[None, :, None]
    train = Mock(spec=nf.Dataset, ys=ys, mask=ys > 0, lengths=np.array([200]))
    data = {"train": train} | ({"validation": Mock(spec=nf.Dataset, mask=ys > 0)} if validated else {})
    model = Mock(typical=Mock(field=object()))
    fit = Mock(spec=Fit, data=data, parameters=size, model=model)
    fit.options = nf.Options(training=nf.Training(window=None))
    attempt = Attempt(
        name, verdict, more.get("train", error), error if validated else None, evidence, more.get("horizon"), 0.0
    )
    return Judged(fit, attempt, error)


@pytest.fixture(autouse=True)
def without_hidden_starts(monkeypatch):
    monkeypatch.setattr(judge, "has_hidden_starts", lambda fit: False)


@pytest.mark.parametrize(
    ("verdict", "error", "noise", "content"),
    [
        ("good", 0.5, 0.0, True),
        ("close", 0.029, 0.0, True),
        ("close", 0.031, 0.0, False),  # more than noise is left, and not a little of it
        ("close", 0.064, 0.05, True),
        ("close", 0.066, 0.05, False),
        ("poor", 0.01, 0.0, False),
    ],
)
def test_a_fit_is_enough_by_its_verdict_unless_much_is_left(verdict, error, noise, content, monkeypatch):
    monkeypatch.setattr(judge, "noise_share", lambda train: noise)
    found = judged(error, verdict)
    assert found.is_content is content
    assert wants_more(race_of(dataclasses.replace(found, runs_away=True))), "what runs away is no end"
    train = Mock(spec=nf.Dataset, mask=np.ones((1, 199, 1), bool))
    few = dataclasses.replace(found, fit=Mock(spec=Fit, data={"train": train}, options=nf.Options()))
    windows = judged(error, verdict)
    windows.fit.options = nf.Options(training=nf.Training(window=64))
    assert windows.is_content is (verdict != "poor"), "windows of long records take minutes each"
    assert few.is_content is (verdict != "poor"), "several models of few values are tried anyway"
    few.fit.options, train.lengths = nf.Options(field=nf.Linear, hidden=1), np.array([191])
    assert few.is_content is (verdict == "good"), "a linear system may lack what is not linear"
    train.lengths = np.array([192])
    assert few.is_content is (verdict != "poor"), "a long record has candidates of its own"
    if verdict == "close" and not content:
        assert why_more(found) == f"as chosen has an error of {error:.2g}, and leaves more than noise"


def test_a_network_that_fits_well_and_runs_away_gets_a_linear_path(monkeypatch):
    monkeypatch.setattr(candidates.Race, "may_hold_elsewhere", True)
    first = dataclasses.replace(judged(0.01, "good"), runs_away=True)
    assert candidates.put_beside_linear(race_of(first)) is not None
    poor = judged(0.5, "poor")
    assert candidates.put_beside_linear(race_of(poor)) is None


@pytest.mark.parametrize("opening", ["larger linear system", "network read with inputs", None])
def test_equations_are_sought_beside_a_good_network_whatever_came_before(opening, monkeypatch):
    """An opening such as a linear system is no attempt of the race."""
    monkeypatch.setattr(candidates.Race, "has_few_variables", True)
    monkeypatch.setattr(candidates, "has_enough_rows", lambda train: True)
    monkeypatch.setattr(candidates, "reads_past", lambda fit: False)
    first, options = judged(0.1, "good"), nf.Options(field=nf.MLP)
    openings = () if opening is None else (judged(0.5, "poor", name=opening),)
    race = candidates.Race(options, "normal", (first,), None, openings)
    assert race.tried == (first, *openings) and race.may_hold_elsewhere
    other = judged(0.2, "good", name="hidden state")
    later = dataclasses.replace(race, made=(first, other))
    assert later.tried == (first, *openings, other) and not later.may_hold_elsewhere


def test_found_equations_fit_their_starts_as_well(monkeypatch):
    """A first row is as noisy as any other; of chaos, and as the user says, starts are read otherwise."""
    monkeypatch.setattr(candidates.Race, "has_few_variables", True)
    monkeypatch.setattr(candidates, "has_enough_rows", lambda train: True)
    monkeypatch.setattr(candidates, "begins_with_equations", lambda options, train: False)
    monkeypatch.setattr(
        candidates.Facts, "of", lambda train, validation: Mock(spec=Facts, restarted=validation is not None)
    )
    first = judged(0.1, "good")
    first.fit.data["train"].trajectories = ("a",)
    assert candidates.search_equations(race_of(first)).start is nf.Fitted
    chaotic = candidates.search_equations(race_of(first, horizon=50)).start
    assert chaotic.keywords == {"given": candidates.CHAOTIC_START}
    assert candidates.search_equations(race_of(first, options=nf.Options(start=nf.First))).start is nf.First
    first.fit.data["train"].trajectories = ("a",) * (candidates.MAX_FITTED_STARTS + 1)
    assert candidates.search_equations(race_of(first)).start == "auto"


def test_a_fit_is_better_by_two_per_cent():
    assert beats(judged(0.97), judged(1.0)) and not beats(judged(0.99), judged(1.0))
    assert beats(judged(0.97, "good"), judged(1.0, "good")) and not beats(judged(0.99, "good"), judged(1.0, "good"))


def test_without_held_out_data_a_good_fit_of_few_parameters_is_better():
    large, small = (judged(1.0, "good", validated=False, size=size) for size in (100, 10))
    assert beats(small, large) and not beats(large, small)
    assert beats(judged(0.9, "good", validated=False, size=12), small)


def test_without_held_out_data_the_evidence_decides_by_more_than_one():
    base = judged(1.0, "good", validated=False, evidence=10.0)
    assert beats(judged(2.0, "good", validated=False, evidence=11.5), base)
    assert not beats(judged(0.1, "good", validated=False, evidence=10.5), base)


def test_equations_that_leave_noise_stand_above_evidence_and_evidence_above_none():
    equations = judged(1.0, "good", name="equations", validated=False)
    likely, plain = judged(0.5, "good", validated=False, evidence=1.0), judged(0.5, "good", validated=False)
    poor = judged(1.0, "poor", name="equations", validated=False, evidence=9.0)
    assert [each.standing for each in (equations, likely, plain, poor)] == [2, 1, 0, 0]
    assert beats(equations, likely) and beats(likely, plain) and beats(plain, poor) and not beats(poor, plain)


def test_equations_may_be_a_little_worse_but_only_if_they_leave_noise():
    other = judged(1.0, "good")
    assert beats(judged(1.03, "good", name="equations"), other)
    assert not beats(judged(1.03, "poor", name="equations"), other)
    assert not beats(judged(1.2, "good", name="equations"), other)
    # Of 200 values, a standard error is 5 %; the least of several errors is a lucky one.
    assert not beats(judged(1.09, "good", name="equations"), other)
    assert beats(judged(1.09, "noise-limited", name="equations"), other)
    assert not beats(judged(1.11, "noise-limited", name="equations"), other)


def test_hidden_starts_that_fit_the_training_rows_better_are_kept(monkeypatch):
    monkeypatch.setattr(judge, "has_hidden_starts", lambda fit: True)
    other = judged(1.0, train=1.0)
    assert beats(judged(1.01, train=0.9), other) and not beats(judged(1.01, train=0.99), other)
    assert beats(judged(0.89, train=2.0), other) and not beats(judged(0.95, train=2.0), other)


def test_fits_of_the_same_equations_are_told_apart_by_their_likelihood_alone(monkeypatch):
    monkeypatch.setattr(judge, "has_same_equations", lambda fits: True)
    near, far = judged(2.0, "poor"), judged(1.0, "good")
    for each, misfit in ((near, 0.9), (far, 1.0)):
        each.fit.status, each.fit.evidence = "converged", Mock(misfit=misfit)
    assert beats(near, far) and not beats(far, near)
    near.fit.status = "failed"
    assert not beats(near, far)


def test_a_single_fit_of_known_equations_needs_no_likelihood(monkeypatch):
    """Which would compile a program that nothing else may need."""
    monkeypatch.setattr(judge, "has_same_equations", lambda fits: True)
    alone = judged(1.0)
    type(alone.fit).evidence = PropertyMock(side_effect=AssertionError("was computed"))
    assert find_best([alone]) is alone


def test_equations_are_the_same_up_to_constants_on_the_same_rows():
    def fit_of(text, rows=10, field=nf.Known):
        made = Mock(spec=field, has_equations=True, has_network=field is nf.Hybrid)
        made.texts.return_value = {"x": text}
        return Mock(spec=Fit, model=Mock(typical=Mock(field=made)), data={"train": Mock(ys=np.ones((1, rows, 1)))})

    def is_alone(field):
        return not field.has_network

    with patch.object(judge, "is_equations_alone", is_alone):
        assert judge.has_same_equations([fit_of("-k*x"), fit_of("-k*x")])
        assert not judge.has_same_equations([fit_of("-k*x"), fit_of("-k*x**2")])
        assert not judge.has_same_equations([fit_of("-k*x"), fit_of("-k*x", rows=9)])
        assert not judge.has_same_equations([fit_of("-k*x"), fit_of("-k*x", field=nf.Hybrid)])


def race_with(monkeypatch, again):
    """A race of one candidate beside a poor first fit."""
    first = with_hidden(judged(1.0, "poor"), 0, field=nf.MLP)
    first.fit.status, first.fit.data["train"].is_driven = "converged", False
    first.fit.data["train"].states = ("x",)
    for name, found in (
        ("horizon_of", None),
        ("horizon_seen_by", None),
        ("judge_attempt", first),
        ("thin_polynomial", first.fit),
        ("wants_more", True),
    ):
        monkeypatch.setattr(race, name, lambda *_, found=found: found)
    monkeypatch.setattr(race, "result_of", lambda best, tried: best.fit)
    wide = functools.partial(nf.MLP, width=99)
    row = candidates.Candidate("another way", ("field",), lambda race: nf.Options(field=wide), "", "")
    monkeypatch.setattr(candidates, "CANDIDATES_BY_KIND", dict.fromkeys(candidates.CANDIDATES_BY_KIND, (row,)))
    return race.run_race(nf.Options(), first.fit, again, "normal", nf.Callback()), first.fit


def test_a_candidate_is_a_row_of_the_table(monkeypatch):
    """A new idea is tried once it is there, and nothing else has to know of it."""
    made = []
    race_with(
        monkeypatch, lambda options, rows: made.append(options.field.keywords) or Mock(spec=Fit, status="stopped")
    )
    assert made == [{"width": 99}]


@pytest.mark.parametrize("named", [candidates.SECOND_ORDER, "another way"])
def test_equations_of_motion_are_read_from_a_good_network(named, monkeypatch):
    """They are tried right after it, and only then."""
    made = []
    good, fit = with_hidden(judged(0.01, "good", name=named), 0, field=nf.MLP), Mock(spec=Fit, status="stopped")
    good.fit.status, good.fit.data["train"].is_driven, good.fit.data["train"].states = "converged", False, ("x",)
    for name, found in (
        ("horizon_of", None),
        ("horizon_seen_by", None),
        ("judge_attempt", good),
        ("wants_more", False),
    ):
        monkeypatch.setattr(race, name, lambda *_, found=found: found)
    monkeypatch.setattr(race, "thin_polynomial", lambda fit, level: fit)
    monkeypatch.setattr(race, "result_of", lambda best, tried: best.fit)
    rows = (replace(candidates.MOTION, options=lambda race: made.append(race) or nf.Options()),)
    monkeypatch.setattr(candidates, "CANDIDATES_BY_KIND", dict.fromkeys(candidates.CANDIDATES_BY_KIND, rows))
    race.run_race(nf.Options(), good.fit, lambda *_: fit, "normal", nf.Callback())
    assert len(made) == (named == candidates.SECOND_ORDER)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, ZeroDivisionError])
def test_an_attempt_that_fails_does_not_cost_the_fit_that_is_there(monkeypatch, caplog, error):
    def fail(*_):
        raise error("no beginning")

    kept, first = race_with(monkeypatch, fail)
    assert kept is first and "another way: no beginning" in caplog.text


def test_an_interruption_while_a_candidate_is_prepared_keeps_the_fit_that_is_there(monkeypatch):
    def interrupt(race):
        raise KeyboardInterrupt

    first = with_hidden(judged(1.0, "poor"), 0, field=nf.MLP)
    first.fit.status, first.fit.data["train"].is_driven, first.fit.data["train"].states = "converged", False, ("x",)
    for name, found in (("horizon_of", None), ("judge_attempt", first), ("wants_more", True)):
        monkeypatch.setattr(race, name, lambda *_, found=found: found)
    ends = []
    monkeypatch.setattr(race, "end_early", lambda race, *why: ends.append(why) or race.first)
    rows = (replace(candidates.MOTION, options=interrupt),)
    monkeypatch.setattr(candidates, "CANDIDATES_BY_KIND", dict.fromkeys(candidates.CANDIDATES_BY_KIND, rows))
    assert race.run_race(nf.Options(), first.fit, Mock(), "normal", nf.Callback()) is first.fit
    assert ends == [("interrupted", "by Ctrl-C")]


def test_equations_with_constants_of_each_trajectory_are_kept_beside_a_poor_fit(monkeypatch, caplog):
    """They are advice, which a good fit does not need."""
    own = Individuals({"x": "-c1*x"}, {"c1": [0.5, 1.0]}, 0.99)

    def replace(what, **more):
        return Mock(spec=Fit, **more) if isinstance(what, Fit) else dataclasses.replace(what, **more)

    monkeypatch.setattr(race, "replace", replace)

    def fail(*_):
        raise NoEquations("they differ", own)

    kept, _ = race_with(monkeypatch, fail)
    assert kept.individuals is own and "another way: they differ" in caplog.text
    good = candidates.Race(nf.Options(), "normal", (judged(0.01, "noise-limited"),), individuals=own)
    assert race.end(good) is good.first


def test_equations_are_searched_beside_hidden_states_if_there_are_several_trajectories(monkeypatch):
    """What differs between trajectories looks like an unmeasured state."""
    monkeypatch.setattr(candidates, "has_enough_rows", lambda train: True)
    monkeypatch.setattr(candidates, "begins_with_equations", lambda options, train: False)
    poor = with_hidden(judged(0.4, "poor"), 2, field=nf.MLP)
    train = poor.fit.data["train"]
    train.states, train.inputs, train.angles, train.trajectories = ("x",), (), {}, ("a", "b", "c")
    monkeypatch.setattr(candidates.Facts, "of", lambda train, validation: Mock(spec=Facts, restarted=False))
    assert candidates.search_equations(race_of(poor)).field is nf.Sparse
    assert candidates.search_equations(race_of(poor, options=nf.Options(hidden=2))) is None
    train.inputs = ("u",)
    assert candidates.search_equations(race_of(poor)) is None
    train.inputs, train.trajectories = (), ("a", "b")
    assert candidates.search_equations(race_of(poor)) is None


def test_the_first_that_ties_with_the_least_error_is_the_best():
    tried = [judged(1.0), judged(0.99), judged(0.9), judged(0.95), judged(math.inf)]
    assert find_best(tried) is tried[2]


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
            monkeypatch.setattr(race, name, lambda fit, holds=name == rule: holds)
        monkeypatch.setattr(race, "count_hidden", lambda fit: 2)
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
        ("poor", {"observation": candidates.NetworkReadout}, None),
    ],
    ids=["poor", "overfitted", "good", "hidden given", "start given", "another readout"],
)
def test_a_hidden_state_is_added_to_what_is_not_good(verdict, given, hidden):
    """A missing state looks like overfitting, too: a network follows each trajectory, and none beside it."""
    best = with_hidden(judged(0.6, verdict), 0)
    for make in (candidates.hide_state, candidates.read_first_rows):
        changed = make(race_of(best, options=nf.Options(**given)))
        assert (changed and changed.hidden) == hidden


def test_the_start_of_a_hidden_state_is_read_from_a_quarter_of_the_rows_at_most():
    best = with_hidden(judged(0.6), 0)
    for shortest, rows in ((200, 4), (12, 3), (7, None)):
        best.fit.data["train"].lengths = np.array([shortest, 300])
        changed = candidates.read_first_rows(race_of(best))
        assert (changed and changed.start.keywords["rows"]) == rows


def test_hidden_states_of_short_trajectories_are_fitted_while_they_help():
    plain = with_hidden(judged(0.6), 0)
    found = candidates.hide_fitted_state(race_of(plain))
    assert found is None, "of 200 rows, the start is read"
    plain.fit.data["train"].lengths = np.array([30] * 8)
    found = candidates.hide_fitted_state(race_of(plain))
    assert found.hidden == 1 and found.start.keywords == {"given": 7} and found.restarts == 3
    assert found.field.keywords == {"width": candidates.NARROW_WIDTH, "depth": 1, "linear": True}
    name = f"{candidates.HIDDEN_STATE}, {candidates.FITTED}"
    helped, worse = (with_hidden(judged(error, name=name), 1) for error in (0.3, 0.7))
    assert candidates.hide_fitted_state(race_of(plain, helped)).hidden == 2
    assert candidates.hide_fitted_state(race_of(plain, worse)) is None
    assert candidates.hide_another_state(race_of(plain, helped)) is None, "its own row adds one"
    plain.fit.data["train"].lengths = np.array([30] * 101)
    assert candidates.hide_fitted_state(race_of(plain)) is None, "so many starts would take long"


def test_states_of_short_trajectories_are_taken_for_positions_if_hidden_states_are_left_open():
    plain = with_hidden(judged(0.6), 0)
    train = plain.fit.data["train"]
    train.states, train.inputs, train.events = ("a", "b"), ("u",), None
    for lengths, is_tried in (([200] * 4, True), ([384], False), ([30] * 101, False)):
        plain.fit.data["train"].lengths = np.array(lengths)
        assert (candidates.take_for_positions(race_of(plain)) is not None) == is_tried
    plain.fit.data["train"].lengths = np.array([30] * 4)
    found = candidates.take_for_positions(race_of(plain))
    assert found.field.func is nf.SecondOrder and found.start.keywords == {"given": 7}
    assert found.hidden == ("a_rate", "b_rate")
    plain.fit.data["train"].states = ("a", "a_rate")
    assert candidates.take_for_positions(race_of(plain)).hidden == 2, "a name is taken"
    train.events = object()
    assert candidates.take_for_positions(race_of(plain)) is None, "a dose is no motion"
    train.events = None
    for given in ({"hidden": 0}, {"start": nf.Fitted}):
        assert candidates.take_for_positions(race_of(plain, options=nf.Options(**given))) is None
    assert candidates.take_for_positions(race_of(with_hidden(judged(0.1, "good"), 0))) is None


def test_another_hidden_state_is_added_only_where_one_has_helped():
    plain = with_hidden(judged(0.6), 0)
    assert candidates.hide_another_state(race_of(plain)) is None
    for name, start in ((candidates.HIDDEN_STATE, "auto"), (f"hidden state {candidates.READ_FROM_ROWS}", nf.Encoder)):
        added = with_hidden(judged(0.3, name=name), 1, start=nf.Encoder)
        changed = candidates.hide_another_state(race_of(plain, added))
        assert changed.hidden == 2 and changed.start == start
        assert candidates.hide_state(race_of(plain, added)) is None
        worse = with_hidden(judged(0.8, name=name), 1)
        assert candidates.hide_another_state(race_of(plain, worse)) is None


def test_hidden_states_are_tried_before_polynomials_of_what_is_measured():
    """They can't do it either, and each costs a fit."""
    first = judged(0.6)
    first.fit.options = nf.Options(field=nf.MLP)
    for rows, states in ((50, 1), (5_000, 1), (5_000, 9)):
        ys = np.broadcast_to(np.linspace(1, 2, rows)[None, :, None], (1, rows, states))
        train = Mock(spec=nf.Dataset, ys=ys, mask=ys > 0, is_driven=False)
        train.states = tuple(f"x{index}" for index in range(states))
        first.fit.data = {"train": train}
        names = [each.name for each in candidates.candidates_of(race_of(first))]
        hidden = [index for index, name in enumerate(names) if candidates.HIDDEN_STATE in name and "states" not in name]
        assert len(hidden) == 5 and hidden[-1] < names.index("quadratic")


def test_the_docs_show_the_table():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "candidates.py"))
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert script["with_tables"](page) == page, "run python scripts/docs/candidates.py --write"
