"""The pages of a run and of several runs, and the files that they are made from."""

import base64
import functools
import gzip
import json
import logging
import re
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.commands import DIRECT, at_once, in_process, node_fit, write_table
from helpers.commands import spirals as rows_of_spirals
from helpers.reports import (
    METRICS,
    by_time,
    by_trajectory,
    curves_of,
    model_of,
    spirals,
    with_hidden,
    write_job,
    write_run,
)

import node_fit as nf
from node_fit.app.background import Drawing, Page
from node_fit.app.leaderboard import row
from node_fit.app.run_directory import RunDirectory
from node_fit.data.tables.times import Dates
from node_fit.evaluation.metrics import score_predictions
from node_fit.evaluation.residuals import autocorrelation
from node_fit.plots.curves import collect
from node_fit.plots.figures import SIDE, phase_points
from node_fit.report import pages
from node_fit.report.__main__ import main
from node_fit.report.page import jsonable_numbers, jsonable_times, shorten
from node_fit.report.pages import make_index, make_member_index, make_run_page, refresh_index, summarise_residuals
from node_fit.report.run_files import read_predictions, read_summary, score_records, trajectories_of
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.storage.model_file import save
from node_fit.sysid.state_space import StateSpace
from node_fit.training.callback import Record

NASTY = "<script>document.title='hit'</script>"


def data_of(page: Path) -> dict:
    """What a page's scripts draw."""
    (packed,) = re.findall(r'id="data">([^<]*)<', page.read_text())
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def shown(page: Path) -> str:
    """A page without its scripts and styles."""
    return re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)


# What is read.


def censored(part: nf.Dataset) -> nf.Dataset:
    """The data with all values below -0.2 as limits, of which a model that predicts less makes no error."""
    below = part.ys < -0.2
    return replace(part, ys=np.where(below, -0.2, part.ys), censored=-below.astype(np.int8))


def test_limits_count_on_the_page_as_in_the_scores_and_the_picture(tmp_path):
    """Before, a model that was below a limit of detection had its distance from it as an error on the page alone."""
    splits = {role: censored(part) for role, part in by_trajectory(spirals(times=25)).items()}
    # The rows that starts are read from are in the table, and count nowhere.
    counted = {
        role: replace(part, scored=part.scored & (np.arange(part.ts.shape[1]) > 0)) for role, part in splits.items()
    }
    run = write_run(tmp_path / "run", splits)
    table = pd.read_csv(run / "predictions.csv")
    table["scored"] = (table["t"] > table["t"].min()).astype(int)
    table.to_csv(run / "predictions.csv", index=False)
    at_rows = {role: model_of(part) for role, part in splits.items()}
    curves = replace(curves_of(splits), counted=counted, at_rows=at_rows)
    drawn = {(role, each.name): error for each in collect(curves) for role, error in each.errors.items()}

    def shown_errors() -> dict:
        records = data_of(run / "report.html")["records"]
        return {(role, each["name"]): error for each in records for role, error in each["errors"].items()}

    make_run_page(run, curves)
    assert shown_errors() == pytest.approx(drawn)
    scores = {role: score_predictions(part, model_of(part)).nrmse for role, part in counted.items()}
    for role, score in scores.items():  # All trajectories have as many values, so that their squares have this mean.
        squares = [error**2 for (other, _), error in shown_errors().items() if other == role]
        assert np.mean(squares) == pytest.approx(score**2, rel=1e-6)
    predictions = read_predictions(run / "predictions.csv")
    plain = dict(zip(zip(predictions.roles, predictions.names, strict=True), predictions.errors(), strict=True))
    assert all(plain[key] > 1.2 * error for key, error in drawn.items()), "the table alone does not know limits"
    make_run_page(run)  # As `node-fit report` makes it later.
    assert shown_errors() == pytest.approx(drawn)


def test_errors_of_other_data_are_not_taken_for_those_of_a_table(tmp_path):
    splits = by_trajectory(spirals())
    predictions = read_predictions(write_run(tmp_path / "run", splits) / "predictions.csv")
    assert set(score_records(predictions, splits)) == set(zip(predictions.roles, predictions.names, strict=True))
    assert score_records(predictions, {"train": splits["train"].select([0])}) == {}
    assert score_records(predictions, {"other": splits["train"]}) == {}


@pytest.mark.parametrize("split", [by_time, by_trajectory])
def test_errors_are_those_of_the_scores(split, tmp_path):
    splits = split(spirals(trajectories=1 if split is by_time else 6))
    predictions = read_predictions(write_run(tmp_path / "run", splits) / "predictions.csv")
    assert predictions is not None
    errors = dict(zip(predictions.roles, predictions.errors().tolist(), strict=True))
    if split is by_time:  # A segment is a split then.
        for role, part in splits.items():
            assert errors[role] == pytest.approx(score_predictions(part, model_of(part)).nrmse)
    np.testing.assert_allclose(
        predictions.residuals, np.concatenate([(part.ys - model_of(part))[part.scored] for part in splits.values()])
    )


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_timestamps_are_times_since_the_first_on_the_page(zone, tmp_path):
    zero = np.array(["2026-01-05T06:00", "2026-01-05T09:00"], dtype="datetime64[us]")
    splits = by_time(replace(spirals(2), time="when", dates=Dates(zero, "h", zone)))
    run = write_run(tmp_path / "run", splits)
    made = data_of(make_run_page(run, curves_of(splits)))
    # The rows are some six minutes apart.
    assert made["time"] == "when, min from 2026-01-05 06:00:00" + (" UTC" if zone else "")
    begun = {"0": 0.0, "1": 180.0}
    for record in made["records"]:
        first, last = record["segments"][0], record["segments"][-1]
        assert first["ts"][0] == first["curve"]["ts"][0] == begun[record["name"]]
        for ts in (last["ts"], last["curve"]["ts"]):
            assert ts[-1] == pytest.approx(begun[record["name"]] + 240.0)
    assert data_of(make_run_page(run)) == made, "a page that is made again differs"


def test_a_forecast_joins_the_trajectory_that_it_continues(tmp_path):
    predictions = read_predictions(write_run(tmp_path / "time", by_time(spirals(2))) / "predictions.csv")
    assert predictions is not None
    assert [(record.name, list(record.errors), record.is_held_out) for record in trajectories_of(predictions)] == [
        ("0", ["train", "test"], True),
        ("1", ["train", "test"], True),
    ]
    # A file of its own for the test may have trajectories of the same names.
    data = spirals(2)
    predictions = read_predictions(write_run(tmp_path / "file", {"train": data, "test": data}) / "predictions.csv")
    assert predictions is not None
    assert [(record.name, list(record.errors)) for record in trajectories_of(predictions)] == [
        ("0", ["train"]), ("1", ["train"]), ("0", ["test"]), ("1", ["test"]),
    ]  # fmt: skip


def test_names_are_told_apart_by_their_places(tmp_path):
    names = ('a"b,\n', "x_predicted")
    data = spirals(2, states=names, us=np.ones((2, 40, 1)), inputs=("split me",))
    predictions = read_predictions(write_run(tmp_path / "run", by_time(data), bands=True) / "predictions.csv")
    assert predictions is not None and predictions.bands is not None
    assert (predictions.states, predictions.inputs, predictions.time) == (names, ("split me",), "t")
    np.testing.assert_allclose(predictions.bands[1] - predictions.bands[0], 0.2)


def test_names_of_trajectories_stay_texts(tmp_path):
    data = replace(spirals(3), trajectories=("001", "1", "1.0"))
    predictions = read_predictions(write_run(tmp_path / "run", {"train": data}) / "predictions.csv")
    assert predictions is not None and predictions.names == ["001", "1", "1.0"]


def test_numbers_are_rounded_for_what_is_drawn():
    assert jsonable_numbers([123456.789, -1.23456789e-9, 0.0, np.nan, np.inf, 1e300]) == [
        123457,
        -1.23457e-9,
        0,
        None,
        None,
        None,
    ]
    assert jsonable_numbers(np.array([0.1, 1e20], dtype=np.float32)) == [0.1, 1e20]
    assert jsonable_times(1.7e9 + np.array([0.0, 0.25, 0.5])) == [1.7e9, 1700000000.25, 1700000000.5]
    assert jsonable_times([]) == [] and jsonable_times([3.0]) == [3.0]


def test_texts_of_numbers_are_short():
    assert [shorten(text) for text in ("0.0404985127", "1e-3", "adamw", "a long name", "123")] == [
        "0.0405", "1e-3", "adamw", "a long name", "123",
    ]  # fmt: skip


def test_autocorrelation_finds_what_lasts_and_does_not_cross_trajectories():
    rng = np.random.default_rng(0)
    values = [0.0]
    for step in rng.normal(size=19_999):
        values.append(0.8 * values[-1] + step)
    one = np.zeros(20_000, dtype=int)
    np.testing.assert_allclose(autocorrelation(np.array(values), one, 3), 0.8 ** np.arange(4), atol=0.03)
    assert abs(autocorrelation(rng.normal(size=20_000), one, 1)[1]) < 0.02
    # Each pair of rows is a trajectory: within it both are equal, beyond it nothing is known.
    pairs = np.repeat(rng.normal(size=500), 2)
    found = autocorrelation(pairs, np.repeat(np.arange(500), 2), 2)
    assert found[1] == pytest.approx(1.0) and np.isnan(found[2])


# The page of a run.


def test_the_page_says_and_holds_what_the_run_left(tmp_path):
    splits = by_trajectory(spirals())
    curves = curves_of(splits)
    run = write_run(tmp_path / "run", splits, words=("data.states=[x,y]", "resume=auto"))
    page = make_run_page(run, curves, -phase_points(curves))
    text, data = shown(page), data_of(page)
    for words in (
        "NRMSE 0.1 on training and 0.2 on test data.",
        "By trajectory. 3 trajectories (120 rows) fitted, 3 trajectories (120 rows) held out for the score.",
        "cd &#39;/my home&#39;\npython -m node_fit &#39;data.states=[x,y]&#39;\n".strip(),
        "all states are measured",
        '<td><code>a</code></td><td class="n">0.5</td>',
        "seed: 0",
    ):
        assert words in text, words
    assert [stage["name"] for stage in data["stages"]] == ["derivative", "main"]
    assert [member["step"] for stage in data["stages"] for member in stage["members"]] == [[10, 20], [30, 40]]
    records = {record["name"]: record for record in data["records"]}
    assert {name: record["rank"] for name, record in records.items()} == {
        "3": "best", "4": "median", "5": "worst", "0": "best", "1": "median", "2": "worst",
    }  # fmt: skip
    (segment,) = records["4"]["segments"]
    np.testing.assert_allclose(segment["ys"], splits["test"].ys[1].T, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(segment["curve"]["ys"], curves.dense["test"][1][1].T, rtol=1e-5, atol=1e-6)
    assert np.shape(data["field"]["slopes"]) == (SIDE, SIDE, 2)
    again = make_run_page(run)  # From what is kept.
    assert data_of(again) == data


def test_what_was_tried_is_a_table(tmp_path):
    tried = {"verdict": "flat", "train": 0.9, "validation": None, "log_evidence": None, "horizon": None}
    first = tried | {"name": "as chosen", "seconds": 3.0, "kept": False}
    second = tried | {"name": "cubic", "verdict": "good", "train": 0.0123, "seconds": 4.0, "kept": True}
    splits = by_time(spirals(1))
    for number, attempts in enumerate(([first], [first, second])):
        run = write_run(tmp_path / str(number), splits, attempts=attempts, horizon=50 if number else None)
        text = shown(make_run_page(run, curves_of(splits)))
        assert ("What was tried" in text) == bool(number)
        cells = '<td>cubic</td><td>good</td><td class="n">0.0123</td><td class="n">4</td>'
        assert not number or (cells in text and "<td>kept</td>" in text and "windows of 50 rows" in text)


def test_losses_are_those_of_attempts_and_the_kept_one_is_named(tmp_path):
    """Stages of one name that followed each other in two attempts were one curve, and no attempt had a name."""
    tried = {"verdict": "flat", "train": 0.9, "validation": None, "log_evidence": None, "horizon": None, "seconds": 1}
    attempts = [tried | {"name": name, "kept": name == "linear"} for name in ("as chosen", "linear")]
    run = write_run(tmp_path / "run", by_time(spirals(1)), attempts=attempts)
    rows = [f"{step},main,1,1,1,1,1,0,1,0,{name}" for name, steps in (
        ("as chosen", (10, 20)), ("cubic", (30,)), ("linear", (40, 45))) for step in steps]  # fmt: skip
    (run / "metrics.csv").write_text("\n".join([f"{METRICS},attempt", *rows, ""]))
    page = make_run_page(run)
    text, stages = shown(page), data_of(page)["stages"]
    assert [(each["attempt"], each["members"][0]["step"]) for each in stages] == [
        ("as chosen", [10, 20]), ("cubic", [30]), ("linear", [40, 45])]  # fmt: skip
    for words in ("1. as chosen: flat, steps 1 to 20", "2. cubic: failed, steps 21 to 30"):
        assert words in text, words
    assert '<h3 class="attempt kept">3. linear: kept, steps 31 to 45</h3>' in text
    assert "<dt>kept attempt</dt><dd>linear</dd>" in text and "<dt>steps</dt><dd>15</dd>" in text


def test_the_result_comes_first_then_curves_then_the_rest(tmp_path):
    """Scores came before the curves, and equations and constants after all residuals and losses."""
    model = {"field": "Known", "start": "Fitted", "equations": {"x": "-a*x", "y": "-y"}}
    numbers = {"x": "-0.5*x", "y": "-y"}
    interval = {"estimate": 0.5, "standard_error": 0.1, "lower": 0.3, "upper": 0.7}
    sure = {"level": 0.95, "constants": {"a": interval}}
    splits = by_trajectory(spirals())
    run = write_run(
        tmp_path / "run", splits, model=model, equations=numbers, confidence=sure, warnings=["x is flat in 2 rows."]
    )
    text = shown(make_run_page(run, curves_of(splits)))
    order = (
        "NRMSE 0.1 on training", "x is flat in 2 rows.", "<dt>field</dt><dd>Known</dd>",
        "<dt>start</dt><dd>Fitted</dd>", "<dt>parameters</dt><dd>90</dd>", "dx/dt = -a*x",
        "<span>0.3</span> to <span>0.7</span>", "dx/dt = -0.5*x",
        '<div id="fit">', "<h2>Scores</h2>", "<h2>Residuals</h2>", "<h2>Loss</h2>", "<h2>What was chosen",
        "<h2>The run",
    )  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places), list(zip(order, places, strict=True))


@pytest.mark.parametrize(
    ("kinds", "held"), [("hold", [True, True]), (["hold", "cubic", "linear"], [False, False]),
                        (["linear", "linear", "hold"], [False, True]), (None, [False, False])]
)  # fmt: skip
def test_inputs_are_drawn_as_the_model_interpolates_each(tmp_path, kinds, held):
    """The first input is constant, and not drawn."""
    us = np.random.default_rng(0).normal(size=(6, 40, 3)) * [0, 1, 1]
    splits = by_trajectory(spirals(us=us, inputs=("dose", "u", "v")))
    made = data_of(make_run_page(write_run(tmp_path / "run", splits, model={"inputs": kinds})))
    assert made["inputs"] == ["u", "v"] and made["held"] == held


def test_inputs_that_are_constant_are_said_and_not_drawn(tmp_path):
    """A covariate had a flat panel in each trajectory."""
    us = np.stack(
        [np.broadcast_to(np.arange(6.0)[:, None], (6, 40)), np.cos(np.ones((6, 1)) * np.arange(40.0))], axis=-1
    )
    splits = by_trajectory(spirals(us=us, inputs=("dose", "u")))
    data = data_of(make_run_page(write_run(tmp_path / "run", splits), curves_of(splits)))
    assert data["inputs"] == ["u"] and data["constants"] == ["dose"]
    assert {each["name"]: each["constants"] for each in data["records"]} == {str(i): [i] for i in range(6)}
    np.testing.assert_allclose(data["records"][0]["segments"][0]["us"], [np.cos(np.arange(40.0))], atol=1e-5)


def test_the_log_says_the_attempt_of_each_chunk(tmp_path):
    record = Record(10, "main", 1.0, None, 1.0, 0.1, 3, 0, 0.5)
    run = RunDirectory(tmp_path)
    run.begin_metrics(-1)
    run.add_metrics([record], "as chosen")
    run.add_metrics([replace(record, step=20)], "several starts")
    assert [(row["step"], row["attempt"]) for row in run.read_metrics()] == [(10, "as chosen"), (20, "several starts")]
    whole = [line.rpartition(",")[0] for line in run.metrics.read_text().splitlines()]
    run.metrics.write_text("\n".join([*whole, ""]))  # as older versions wrote it
    run.begin_metrics(10)
    run.add_metrics([replace(record, step=20)], "as chosen")
    assert [(row["step"], row["attempt"]) for row in run.read_metrics()] == [(10, ""), (20, "as chosen")]


def test_a_linear_model_has_matrices_poles_and_gain(tmp_path):
    one = np.eye(2)
    space = StateSpace(("x", "y"), ("u",), ("x",), -one, one[:, :1], 0 * one[0], one[:1], np.zeros((1, 1)), np.zeros(1))
    splits = by_time(spirals(1))
    run = write_run(tmp_path / "run", splits, model={"field": "Linear", "state_space": space.as_dict()})
    text = shown(make_run_page(run))
    for title in ("A", "B", "C", "rest", "Static gain", "Poles"):
        assert f"<h3>{title}" in text, title
    assert "<h3>shift" not in text and "<h3>D<" not in text and "x [m]" in text
    with_direct = {"field": "Linear", "state_space": replace(space, direct=one[:1, :1]).as_dict()}
    text = shown(make_run_page(write_run(tmp_path / "direct", splits, model=with_direct)))
    assert "<h3>D<" in text and "+ D <b>u</b>" in text and "Static gain, D − C A⁻¹ B" in text
    still = replace(space, a=0 * one).as_dict()
    text = shown(make_run_page(write_run(tmp_path / "still", splits, model={"state_space": still})))
    assert "<h3>Static gain" not in text and "There is no static gain" in text


def found_equations(name: str = "x") -> dict:
    """A `discovery.json` of two systems of one state, of which the second is a rival."""
    linear, cubic = ({"equations": {name: text}, "shown": {name: text}} for text in (f"-1*{name}", f"-0.5*{name}**3"))
    systems = [linear | {"size": 4, "error": 0.02}, cubic | {"size": 8, "error": 0.01}]
    curves = {"record": "a", "time": "t", "times": [0, 1], "measured": {name: [2.0, None]}, "fine": [0, 0.5, 1]}
    return {
        "verdict": f"found an equation of {name}.", "ranked": systems, "front": systems, "rivals": systems[1:],
        "weights": [0.8, 0.2], "curves": curves | {"systems": [[[2.0, 1.4, 1.0]], None]},
    }  # fmt: skip


def test_equations_that_were_found_are_a_table_and_pictures(tmp_path):
    splits = by_time(spirals(1))
    run = write_run(tmp_path / "run", splits)
    (run / "discovery.json").write_text(json.dumps(found_equations(NASTY)))
    page = make_run_page(run, curves_of(splits))
    text, drawn = shown(page), data_of(page)["discovery"]
    assert "Equations that were found" in text and "&lt;script&gt;document" in text and NASTY not in text
    assert (
        '<td class="n">0.02</td><td class="n">0.8</td>' in text
        and '<td class="n">0.01</td><td class="n">0.2</td>' in text
    )
    assert f"--config-dir {run} experiment=discovered" in text
    assert drawn["front"] == [[4, 0.02], [8, 0.01]] and drawn["curves"]["systems"][0] == [[2.0, 1.4, 1.0]]


@pytest.mark.parametrize("wrong", [{"ranked": 3}, {"weights": []}, {"front": [{"size": 4, "error": float("nan")}]}])
def test_a_damaged_file_of_equations_is_left_out(wrong, tmp_path):
    splits = by_time(spirals(1))
    run = write_run(tmp_path / "run", splits)
    (run / "discovery.json").write_text(json.dumps(found_equations() | wrong))
    page = make_run_page(run, curves_of(splits))
    assert data_of(page)["discovery"] is None and "Equations that were found" not in shown(page)


def test_a_forecast_is_one_curve(tmp_path):
    splits = by_time(spirals(1))
    data = data_of(make_run_page(write_run(tmp_path / "run", splits), curves_of(splits)))
    (record,) = data["records"]
    first, second = record["segments"]
    assert record["forecast"] == first["ts"][-1] < second["ts"][0]
    # The forecast's curve begins where that of the past ends.
    assert first["curve"]["ts"][-1] == pytest.approx(second["curve"]["ts"][0], abs=0.02)


@pytest.mark.parametrize("dated", [False, True])
def test_events_and_hidden_states_are_drawn_and_kept(dated, tmp_path):
    zero = np.array(["2026-01-05T06:00", "2026-01-05T09:00"], dtype="datetime64[us]")
    data = replace(spirals(2), dates=Dates(zero, "min", None) if dated else None)
    zeros = [each.astype(object) for each in zero] if dated else [0.0, 0.0]
    at = [zeros[i] + (timedelta(minutes=m) if dated else m) for i, m in ((0, 1.03), (0, 3.52), (1, 2.0))]
    events = [
        {"time": at[0], "trajectory": "0", "state": "gut", "add": 300.0},
        {"time": at[0], "trajectory": "0", "state": "x", "multiply": 0.5},
        {"time": at[1], "trajectory": "0", "state": "gut", "add": -2.5},
        {"time": at[2], "trajectory": "1", "state": "gut", "set": 0.0},
    ]
    splits = by_time(nf.with_events(data, events))
    curves = with_hidden(curves_of(splits), "gut")
    run = write_run(tmp_path / "run", splits)
    made = data_of(make_run_page(run, curves))
    assert made["hidden"] == ["gut"]
    first, second = made["records"] if made["records"][0]["name"] == "0" else made["records"][::-1]
    unit = 60 if made["time"].startswith("t, s from") else 1
    assert [text for _, text in first["events"]] == ["gut + 300, x × 0.5", "gut − 2.5"]
    np.testing.assert_allclose([time for time, _ in first["events"]], [1.03 * unit, 3.52 * unit], rtol=1e-6)
    assert [text for _, text in second["events"]] == ["gut = 0"]
    assert second["events"][0][0] == pytest.approx(182 * unit if dated else 2.0)
    curve = first["segments"][0]["curve"]
    np.testing.assert_allclose(curve["hidden"][0], np.sum(curve["ys"], axis=0), rtol=1e-4, atol=1e-4)
    assert len(first["segments"][1]["curve"]["hidden"][0]) == len(first["segments"][1]["curve"]["ts"])
    assert data_of(make_run_page(run)) == made, "a page that is made again differs"


def test_nothing_is_loaded_and_names_are_texts(tmp_path):
    data = spirals(states=(NASTY, "</script><b>%{x}"), time="<i>t")
    run = write_run(tmp_path / "run", by_trajectory(data), words=(f"data.states=[{NASTY}]",))
    page = make_run_page(run)
    text = page.read_text()
    assert NASTY not in text and "<b>%{x}" not in text
    assert shown(page).count("&lt;script&gt;document") >= 3  # The title, the scores, the command.
    assert not re.findall(r"(?:src|href)=", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    assert "default-src 'none'" in text
    assert data_of(page)["states"][0] == NASTY


@pytest.mark.slow
def test_thousands_of_trajectories_fit_in(tmp_path):
    count = 3000
    data = spirals(count, times=60)
    page = make_run_page(write_run(tmp_path / "run", by_trajectory(data), bands=True))
    assert page.stat().st_size < 6e6
    drawn = data_of(page)
    assert 100 < len(drawn["records"]) <= 406
    ranks = [(record["rank"], record["held"]) for record in drawn["records"]]
    assert {(rank, held) for rank in ("best", "median", "worst") for held in (False, True)} <= set(ranks)
    assert f"{len(drawn['records'])} of 3,000 trajectories" in shown(page)


def test_a_long_record_is_thinned(tmp_path):
    page = make_run_page(write_run(tmp_path / "run", {"train": spirals(1, times=100_000)}))
    (record,) = data_of(page)["records"]
    assert record["segments"][0]["step"] == 25 and len(record["segments"][0]["ts"]) == 4000
    assert page.stat().st_size < 6e6


def test_what_is_missing_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", by_trajectory(spirals()))
    for name in ("predictions.csv", "metrics.csv", "config.yaml", ".run.json"):
        (run / name).unlink()
        assert "NRMSE 0.1 on training" in shown(make_run_page(run))
    (run / "summary.json").write_text('{"status": "failed", "reason": "the disk is full"}')
    assert "the disk is full" in shown(make_run_page(run))
    (run / "summary.json").unlink()
    assert "There is no summary yet." in shown(make_run_page(run))


def test_a_run_of_an_older_version_gets_its_page(tmp_path):
    golden = Path(__file__).parents[1] / "golden" / "run"
    run = shutil.copytree(golden, tmp_path / "run")
    data = data_of(make_run_page(run))
    assert len(data["states"]) == 2 and data["records"] and data["stages"]
    assert data["field"] is None  # It has a hidden state.


def test_the_field_comes_from_the_model_where_none_is_kept(tmp_path):
    data = spirals()
    run = write_run(tmp_path / "run", by_trajectory(data))
    with scope("x32"):
        parts = {"field": functools.partial(nf.MLP, width=4, depth=1), "key": jax.random.key(0)}
        model = carry(nf.make_model(data, **parts), dtype_of("x32"))
    save(model, run / "model.safetensors")
    page = make_run_page(run)
    field = data_of(page)["field"]
    point = np.array([[field["xs"][3], field["ys"][5]]])
    np.testing.assert_allclose(field["slopes"][5][3], model.derivative(point)[0], rtol=1e-3)
    assert "equinox" in shown(page)  # Among the versions.


def test_predictions_that_are_not_finite(tmp_path):
    run = write_run(tmp_path / "run", by_trajectory(spirals()))
    text = (run / "predictions.csv").read_text().splitlines()
    broken = [
        ",".join([*line.split(",")[:4], "inf" if i % 2 else "", *line.split(",")[5:]])
        for i, line in enumerate(text[-9:])
    ]
    (run / "predictions.csv").write_text("\n".join([*text[:-9], *broken, ""]))
    data = data_of(make_run_page(run))
    worst = next(record for record in data["records"] if record["name"] == "5")
    assert worst["errors"] == {"test": None} and worst["segments"][0]["curve"]["ys"][0][-1] is None


# Several runs.


def jobs(tmp_path: Path) -> Path:
    sweep = tmp_path / "sweep"
    write_job(sweep, 0, ("optimizer=adam", "seed=0"))
    write_job(sweep, 1, ("optimizer=lbfgs", "seed=0", f"+note={NASTY}"))
    write_job(sweep, 2, ("optimizer=lm", "seed=0"), status="failed", reason="out of memory", metrics={}, diagnosis=None)
    (write_job(sweep, 3, ("optimizer=adam", "seed=0")) / "summary.json").unlink()
    return sweep


def test_the_page_of_a_multirun(tmp_path):
    sweep = jobs(tmp_path)
    make_run_page(sweep / "0")
    page = make_index(sweep, running=True)
    data, text = data_of(page), shown(page)
    assert data["varied"] == ["optimizer", "note"]
    assert {job["name"]: job["status"] for job in data["jobs"]} == {
        "0": "completed", "1": "completed", "2": "failed", "3": "running",
    }  # fmt: skip
    assert [job["name"] for job in data["jobs"]][:2] == ["0", "1"]
    assert data["jobs"][0]["curve"]["step"] == [30, 40] and data["jobs"][0]["page"] == "0/report.html"
    assert NASTY not in text and "out of memory" in text and 'http-equiv="refresh"' in text
    assert re.findall(r'href="([^"]*)"', text) == ["0/report.html"]
    done = make_index(sweep, {"3": "lost"})
    assert "refresh" not in shown(done) and "1 lost" in shown(done)


def test_the_page_of_jobs_under_way_takes_a_small_share_of_their_time(tmp_path, monkeypatch):
    sweep = jobs(tmp_path)
    refresh_index(sweep)
    (sweep / "index.html").unlink()
    took = pages.LAST_MADE[sweep][1]
    refresh_index(sweep)
    assert not (sweep / "index.html").exists()
    monkeypatch.setitem(pages.LAST_MADE, sweep, (time.monotonic() - 21 * took, took))
    refresh_index(sweep)
    assert (sweep / "index.html").exists()


def test_the_page_of_an_ensemble(tmp_path):
    ends = [
        {"status": "completed", "reason": "took all 40 steps"},
        {"status": "failed", "reason": "no loss was finite"},
    ]
    ensemble = {"members": ends, "kept": 1, "calibrated": True, "level": 0.9, "coverage": {"train": 0.91, "test": None}}
    run = write_run(tmp_path / "run", by_trajectory(spirals()), bands=True, ensemble=ensemble)
    with open(run / "metrics.csv", "a") as file:
        file.write("40,main,,,1,1,40,4,4.0,1\n")
    page = make_member_index(run)
    assert page is not None and "no loss was finite" in shown(page) and 'href="report.html"' in shown(page)
    text = " ".join(shown(make_run_page(run)).split())
    assert "they hold 91% of train. They are calibrated on validation data." in text
    assert make_member_index(write_run(tmp_path / "single", by_time(spirals(1)))) is None


# The commands.


def test_open_makes_pages_again(tmp_path):
    sweep = jobs(tmp_path)
    ran = in_process(lambda: main([str(sweep)]), tmp_path)
    assert ran.code == 0 and ran.out == f"report: {sweep / 'index.html'}\n"
    assert all((sweep / name / "report.html").is_file() for name in "012")
    ran = in_process(lambda: main([str(sweep / "1")]), tmp_path)
    assert ran.out == f"report: {sweep / '1' / 'report.html'}\n"


@pytest.mark.parametrize(("name", "words"), [("nowhere", "there is no directory"), ("empty", "holds no run")])
def test_open_says_what_is_no_run(name, words, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = in_process(lambda: main([str(tmp_path / name)]), tmp_path)
    assert ran.code == 1 and words in ran.sentence and "outputs/DATE/TIME" in ran.sentence


@pytest.mark.slow
def test_open_is_a_word_of_the_main_command(tmp_path):
    run = write_run(tmp_path / "run", by_time(spirals(1)))
    ran = node_fit(tmp_path, "open", "run", "--no-show")
    assert (ran.code, ran.out, ran.err) == (0, f"report: {run / 'report.html'}\n", "")


@pytest.mark.slow
def test_a_page_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    drawing, splits = Drawing(), by_time(spirals(1))
    run = write_run(tmp_path / "run", splits)
    with caplog.at_level(logging.WARNING):
        drawing.draw(Page(tmp_path / "nowhere", curves_of(splits), None))
        drawing.draw(Page(run, curves_of(splits), None, tmp_path))
        drawing.finish()
    assert (
        f"the page {tmp_path / 'nowhere' / 'report.html'} was not drawn: {tmp_path / 'nowhere'} is gone" in caplog.text
    )
    assert (run / "report.html").is_file() and (tmp_path / "index.html").is_file()


@pytest.mark.slow
def test_runs_without_a_page(tmp_path):
    """One that is told to make none, and one that can't write it; both end well."""
    write_table(tmp_path / "mine.csv", rows_of_spirals())
    (tmp_path / "hindered" / "report.html").mkdir(parents=True)
    few = (*DIRECT, "training.steps=2", "training.chunk_steps=1")
    ran = at_once(
        tmp_path,
        {
            "none": (*few, "report=false", "hydra.run.dir=none"),
            "hindered": (*few, "hydra.run.dir=hindered"),
        },
    )
    assert ran["none"].code == 0 and not (tmp_path / "none" / "report.html").exists()
    assert not (tmp_path / "none" / ".curves.npz").exists() and "report:" not in ran["none"].out
    assert ran["hindered"].code == 0 and "report:" not in ran["hindered"].out
    assert "report.html can't be written, since it is a folder" in ran["hindered"].out + ran["hindered"].err
    assert "run: " in ran["hindered"].out and not ran["none"].err


def test_report_must_be_a_truth_value(tmp_path):
    write_table(tmp_path / "mine.csv", rows_of_spirals())
    ran = node_fit(tmp_path, *DIRECT, "report=often")
    assert ran.code == 1 and ran.sentence == "report must be true or false, got 'often'."


OLD = [("converged: the line search finds nothing", "converged"), ("the validation loss has not improved", "stopped")]


@pytest.mark.parametrize(("reason", "status"), OLD)
def test_runs_of_version_0_2_have_todays_statuses(tmp_path, reason, status):
    """`stopped_early` was both; a leaderboard and a page of such a run say what it was."""
    members = [{"status": "stopped_early", "reason": reason}, {"status": "failed", "reason": "no loss was finite"}]
    ensemble = {"members": members, "kept": 1, "level": 0.9, "coverage": {}, "calibrated": False}
    ended = {"status": "stopped_early", "reason": reason, "ensemble": ensemble}
    job = write_job(tmp_path, 0, ("seed=1",), **ended)
    assert row(job)["status"] == status
    summary = read_summary(job)
    assert [each["status"] for each in summary["ensemble"]["members"]] == [status, "failed"]
    for page in (make_run_page(job), make_index(tmp_path)):
        text = page.read_text()
        assert "stopped_early" not in text and "stopped early" not in text and "converged: converged" not in text


# The page agrees with the terminal.


def test_rows_are_those_that_the_terminal_counts(tmp_path):
    """Of 15 rows one gives the start; the page said 14 rows were fitted, the terminal 15."""
    splits = by_time(spirals(1))
    rows, given = {"train": 14, "test": 9}, {"train": 15, "test": 9}
    text = shown(make_run_page(write_run(tmp_path / "run", splits, rows=rows, given_rows=given)))
    assert "15 rows (14 scored) fitted" in text and "9 rows held out" in text
    older = shown(make_run_page(write_run(tmp_path / "older", splits, rows=rows)))
    assert "14 rows fitted" in older


def test_steps_are_those_of_each_stage(tmp_path):
    """`training.steps=20` is that of the last stage; the page said 40."""
    text = shown(make_run_page(write_run(tmp_path / "run", by_time(spirals(1)))))
    assert re.search(r"<dt>steps</dt><dd>20 \+ 20</dd>", text)


@pytest.mark.parametrize(("own", "marked"), [(2.54, False), (0.54, True)])
def test_an_error_worse_than_the_means_is_not_marked_as_the_best(tmp_path, own, marked):
    channels = {"x": {"rmse": own, "nrmse": own, "r2": 1 - own**2, "points": 5}}
    figures = {"train": {"rmse": own, "nrmse": own, "r2": 1 - own**2, "channels": channels}}
    worse = {"train": {**figures["train"], "nrmse": 3.0, "channels": {"x": {**channels["x"], "nrmse": 3.0}}}}
    run = write_run(tmp_path / "run", by_time(spirals(1)), metrics=figures, baselines={"persistence": worse})
    assert (' best"' in shown(make_run_page(run))) == marked


def test_the_word_on_residuals_is_that_of_the_sentences():
    """Of 50 rows of noise, one channel in twenty lies outside of chance, which misses nothing."""
    says = ("Neighbouring residuals depend on each other (lag-1 correlation 0.30 of x).",)
    assert (
        summarise_residuals([0.3], 0.28, ()) == "nearly noise" and summarise_residuals([0.1], 0.28, ()) == "like noise"
    )
    assert summarise_residuals([0.3], 0.28, says) == "no noise: the model misses something"
    assert summarise_residuals([0.3], 0.28, says, "test") == "no noise: errors last"


def test_a_stage_of_one_chunk_is_told_and_not_drawn(tmp_path):
    run = write_run(tmp_path / "run", by_time(spirals(1)))
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join([*lines[:2], *lines[3:], ""]))
    text = shown(make_run_page(run))
    assert "One chunk, which ended with a loss of training 0.2, validation 0.3." in text
    assert 'id="loss0"' not in text and 'id="loss1"' in text
