"""Options that are resolved from facts alone: a table of cases, and that the docs show the same."""

import functools
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.problems import rotation

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.fitting.resolve import RIDGES, SHORT_RIDGE, Identified, resolve
from node_fit.model.make_model import maker_class

ROOT = Path(__file__).parents[2]
FREE = Facts(trajectories=3, rows=600, longest=200, values=1200)
DRIVEN = Facts(
    trajectories=1, rows=2000, longest=2000, values=2000, driven=True, inputs="hold", inputs_reason="2 levels",
    validated=True,
)  # fmt: skip
NOISY = Facts(trajectories=12, rows=360, longest=30, values=720, noise=0.1)
LIMITED = replace(FREE, begins_at_limit=True)
# A start that reads the rows before it.
PAST = {"start": functools.partial(nf.Encoder, before=True)}
FOUND = Identified(SimpleNamespace(error=0.05, hidden=2), "hidden", 2, "NRMSE")


def resolved(facts, found=FOUND, **options):
    """The plan, after an identification where one is asked for."""
    plan = resolve(nf.Options(**options), facts)
    return resolve(nf.Options(**options), facts, found) if plan.identify else plan


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        (FREE, {}, {"hidden": 0, "start": nf.First, "window": None, "steps": 2000, "restarts": 1}),
        (FREE, PAST, {"hidden": 2, "start": nf.Encoder, "window": 64, "steps": 400, "restarts": 1}),
        (replace(FREE, events=True), PAST, {"hidden": 0, "window": None, "steps": 2000}),
        (replace(FREE, longest=191), PAST, {"hidden": 0, "window": None, "steps": 2000}),
        (NOISY, {}, {"hidden": 0, "start": nf.Fitted, "window": None, "steps": 2000, "restarts": 1}),
        *(
            (replace(NOISY, **other), {}, {"start": nf.First})
            for other in ({"noise": 0.02}, {"trajectories": 3}, {"trajectories": 13}, {"angles": True})
        ),
        *(
            (NOISY, other, {"start": nf.First})
            for other in ({"hidden": 1}, {"observation": nf.LinearReadout}, {"training": nf.Training(batch_size=4)})
        ),
        (LIMITED, {}, {"start": nf.Fitted}),
        (LIMITED, {"start": nf.First}, {"start": nf.First}),
        (replace(LIMITED, trajectories=101), {}, {"start": nf.First}),
        (LIMITED, {"hidden": 1}, {"start": nf.First}),
        (DRIVEN, {}, {"hidden": 2, "start": nf.Encoder, "window": 128, "steps": 400, "restarts": 1}),
        (DRIVEN, {"hidden": 1}, {"hidden": 1, "start": nf.Encoder, "window": 128}),
        (DRIVEN, {"start": nf.Fitted}, {"hidden": 0, "start": nf.Fitted, "window": None, "steps": 2000}),
        (DRIVEN, {"start": nf.First}, {"hidden": 2, "start": nf.First, "window": 128}),
        (DRIVEN, {"training": nf.Training(window=None)}, {"hidden": 0, "start": nf.First, "window": None}),
        (DRIVEN, {"training": nf.Training(window=20, steps=7)}, {"window": 20, "steps": 7, "start": nf.Encoder}),
        (replace(DRIVEN, events=True), {}, {"hidden": 0, "start": nf.First, "window": None}),
        (replace(DRIVEN, longest=191), {}, {"window": None, "start": nf.First}),
        (replace(DRIVEN, longest=192), {}, {"window": 64, "start": nf.Encoder}),
        (replace(DRIVEN, longest=384), {}, {"window": 128}),
        (replace(DRIVEN, rows=1000), {}, {"restarts": 3}),
        (replace(DRIVEN, rows=1000), {"restarts": 2}, {"restarts": 2}),
        (replace(DRIVEN, rows=1000, validated=False), {}, {"restarts": 1}),
        (replace(DRIVEN, rows=10_000), {}, {"steps": 1000}),
        (DRIVEN, {"observation": nf.NetworkReadout}, {"hidden": 0, "steps": 1000, "start": nf.Encoder}),
    ],
)
def test_options_follow_from_facts(facts, options, expected):
    found = resolved(facts, **options).options
    actual = {"hidden": found.hidden, "start": maker_class(found.start), "restarts": found.restarts}
    actual |= {"window": found.training.window, "steps": found.training.steps}
    assert {key: actual[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("facts", "options", "asked"),
    [
        (FREE, {}, False),
        (DRIVEN, {}, True),
        (DRIVEN, {"field": nf.Linear}, True),
        (DRIVEN, {"field": nf.Polynomial}, True),
        (DRIVEN, {"field": functools.partial(nf.MLP, linear=False)}, False),
        (DRIVEN, {"field": nf.SecondOrder}, False),
        (DRIVEN, {"observation": nf.LinearReadout}, False),
        (replace(DRIVEN, angles=True), {}, False),
        (replace(DRIVEN, events=True), {}, False),
    ],
)
def test_a_linear_model_is_asked_for_where_the_field_has_a_place_for_it(facts, options, asked):
    assert resolve(nf.Options(**options), facts).identify is asked


def test_a_linear_model_sets_the_solver_and_the_path():
    plan = resolved(DRIVEN)
    assert plan.options.solver.rtol == pytest.approx(0.05 / 200, rel=0.3)
    assert plan.options.field.keywords == {"linear": True}
    assert [choice.key for choice in plan.choices] == [
        "solver.inputs", "training.window", "hidden", "solver.rtol", "start", "penalty.ridge",
    ]  # fmt: skip
    assert all(choice.reason for choice in plan.choices)


def test_the_weight_of_the_prior_is_given_constant_or_one_of_several():
    assert resolved(FREE).ridges == (0.0,)
    assert resolved(replace(FREE, values=199)).ridges == (SHORT_RIDGE,)
    assert resolved(FREE, penalty=nf.Penalty(ridge=0.3)).ridges == (0.3,)
    assert resolved(DRIVEN).ridges == pytest.approx([1000 * each for each in RIDGES])
    assert resolved(replace(DRIVEN, validated=False)).ridges == pytest.approx([1000 * RIDGES[1]])


def test_an_earlier_model_is_not_identified_again():
    assert not resolve(nf.Options(), DRIVEN, continued=True).identify


def test_resolving_changes_neither_options_nor_itself():
    options = nf.Options()
    before = repr(options)
    first, second = (resolve(options, DRIVEN, FOUND) for _ in range(2))
    assert repr(options) == before and first.choices == second.choices and first.ridges == second.ridges


def test_facts_are_read_from_data():
    data = rotation()
    facts = Facts.of(data, data)
    assert (facts.trajectories, facts.rows, facts.longest) == (len(data), data.lengths.sum(), data.lengths.max())
    assert facts.validated and not facts.driven and not facts.events and facts.smoothable
    us = np.repeat([0.0, 1.0, 0.0], 10)[:, None]
    driven = nf.Dataset.from_arrays(np.arange(30.0), np.sin(np.arange(30.0)), us)
    assert Facts.of(driven).driven and Facts.of(driven).inputs == "hold"


def test_noise_is_measured_by_neighbours():
    ts, rng = np.linspace(0, 6, 60), np.random.default_rng(0)
    ys = np.stack([np.sin(ts + phase) for phase in range(8)])[..., None]
    noisy = ys + 0.1 * ys.std() * rng.normal(size=ys.shape)
    shares = [Facts.of(nf.Dataset.from_arrays(ts, each, states=["x"])).noise for each in (ys, noisy)]
    assert shares[0] < 0.01 and shares[1] == pytest.approx(0.1, rel=0.15)
    still = nf.Dataset.from_arrays(ts, np.ones((8, 60, 1)), states=["x"])
    assert Facts.of(still).noise == 0.0


def test_the_docs_show_what_is_chosen():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "choices.py"))
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert script["with_table"](page) == page, "run python scripts/docs/choices.py --write"
