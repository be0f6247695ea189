import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
from helpers.pictures import TIMES, curve, pictures, pixels, split_by_trajectory, waves
from omegaconf import OmegaConf

from node_fit import from_frame, with_events
from node_fit.app import background, run_logger
from node_fit.app.config.build import trajectories_to_plot
from node_fit.app.config.composition import ConfigError
from node_fit.app.run_directory import RunDirectory
from node_fit.app.run_logger import RunLogger
from node_fit.data.dataset import Dataset
from node_fit.evaluation.metrics import score_predictions
from node_fit.plots import figures
from node_fit.plots.curves import EVENT, Curves, collect
from node_fit.plots.figures import (
    choose_trajectories,
    fit_figure,
    limits,
    phase_points,
    plot_fit,
    plot_loss,
    plot_phase,
    select_trajectories,
)
from node_fit.storage.checkpoint import SUFFIX
from node_fit.training.callback import Callbacks, Record, RunState


def split_by_time(data: Dataset) -> Curves:
    splits = {"train": data.until(3.0), "validation": data.until(4.5).score_after(3.0), "test": data.score_after(4.5)}
    return Curves(splits, {role: curve(part) for role, part in splits.items()})


def test_a_forecast_continues_its_trajectory():
    (record,) = collect(split_by_time(waves(1)))
    assert [segment.role for segment in record.segments] == ["train", "validation", "test"]
    assert record.forecast == 3
    assert record.curve.ts[-1] == 6
    assert record.is_held_out
    counted = [segment.ts[np.isfinite(segment.ys[:, 0])] for segment in record.segments]
    assert np.concatenate(counted) == pytest.approx(TIMES), "each row belongs to exactly one role"


def test_a_held_out_trajectory_of_the_same_name_is_another_one():
    data = waves(1)
    curves = Curves({"train": data, "test": data}, {"train": curve(data), "test": curve(data)})
    assert [record.is_held_out for record in collect(curves)] == [False, True]


def test_best_median_and_worst_are_chosen_of_each_kind():
    shown = choose_trajectories(collect(split_by_trajectory(waves(16), train=9)))
    assert [(record.name, label) for record, label in shown] == [
        ("0", "best"), ("4", "median"), ("8", "worst"), ("9", "best"), ("12", "median"), ("15", "worst")
    ]  # fmt: skip


def test_a_failed_trajectory_is_the_worst():
    curves = split_by_trajectory(waves(9), train=4)
    curves.dense["validation"][1][2, 10:] = np.nan
    record, label = choose_trajectories(collect(curves))[-1]
    assert (record.name, label, record.error) == ("6", "worst", np.inf)


def test_a_diverging_curve_does_not_squeeze_the_data():
    curves = Curves({"train": waves(1)}, {"train": curve(waves(1))})
    curves.dense["train"][1][0, 20:] = 1e12
    low, high = limits(collect(curves), 0)
    assert high - low < 4


def test_a_band_is_seen_as_far_as_it_does_not_squeeze_the_data():
    data = waves(1)
    ts, ys = curve(data)
    room = []
    for reach in (0.2, 0.4, 100.0):
        records = collect(Curves({"train": data}, {"train": (ts, ys)}, {"train": (ys - reach, ys + reach)}))
        low, high = limits(records, 0, room=0.0)
        room.append((float(ys[..., 0].min()) - low, high - float(ys[..., 0].max())))
    np.testing.assert_allclose(room[:2], [[0.2, 0.2], [0.4, 0.4]], atol=1e-6)
    assert max(room[2]) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    "curves",
    [
        split_by_time(waves(1, states=1, inputs=1)),
        split_by_trajectory(waves(5), train=3),
        split_by_trajectory(waves(40, states=8, inputs=3), train=30),
        Curves({"train": waves(1)}, {"train": curve(waves(1))}),
    ],
    ids=["forecast", "trajectories", "many", "train alone"],
)
def test_a_fit_is_drawn(tmp_path, curves):
    path = plot_fit(curves, tmp_path / "fit.png")
    assert pixels(path).std() > 0.01


def test_errors_are_those_of_the_rows_though_the_curve_jumps_there():
    data = waves(1)
    ts, ys = curve(data)
    at_jumps = Curves({"train": data}, {"train": (ts, ys + 1.0)}, at_rows={"train": data.ys})
    assert [record.errors for record in collect(at_jumps)] == [{"train": 0.0}]


def test_events_are_marked_where_they_happen():
    data = waves(2)
    data = with_events(data, [{"time": 2.0, "state": data.states[0], "add": 1.0, "trajectory": data.trajectories[1]}])
    figure = fit_figure(Curves({"train": data}, {"train": curve(data)}))
    marked = [
        line.get_xdata().tolist() for axes in figure.axes for line in axes.lines if line.get_marker() == EVENT["marker"]
    ]
    assert marked == [[2.0]]
    assert "event" in [text.get_text() for text in figure.legends[0].texts]


@pytest.mark.parametrize("inputs", ["linear", "hold"])
def test_an_input_is_drawn_as_the_model_has_it_between_rows(inputs):
    data = waves(1, inputs=1)
    figure = fit_figure(Curves({"train": data}, {"train": curve(data)}, inputs=inputs))
    (line,) = figure.axes[-1].lines
    assert line.get_drawstyle() == {"linear": "default", "hold": "steps-post"}[inputs]


def test_phases_of_cycles_are_not_drawn():
    data = replace(waves(1, inputs=1), units={"t": "h"})
    drawn = [
        fit_figure(Curves({"train": part}, {"train": curve(part)}))
        for part in (data, data.with_cycles(["day", "week"]))
    ]
    labels = [[axes.get_ylabel() for axes in figure.axes] for figure in drawn]
    assert labels[0] == labels[1] and drawn[1].get_suptitle() == ""


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_solutions_that_fail_are_drawn_as_far_as_they_go(tmp_path, bad):
    data = waves(2)
    good, failed = curve(data), curve(data)
    failed[1][0, 12:] = bad
    failed[1][1] = bad
    pictures = [
        pixels(plot_fit(Curves({"train": data}, {"train": dense}), tmp_path / "fit.png")) for dense in (good, failed)
    ]
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).any()
    plot_phase(Curves({"train": data}, {"train": failed}), None, tmp_path / "phase.png")


def test_missing_values_and_ragged_trajectories_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    ys = [np.where(rng.random((n, 2)) < 0.3, np.nan, rng.normal(size=(n, 2))) for n in (20, 5, 1)]
    ys[1][:, 0] = np.nan
    data = Dataset.from_arrays([np.arange(float(len(y))) for y in ys], ys)
    plot_fit(Curves({"train": data}, {"train": curve(data)}), tmp_path / "fit.png")
    plot_phase(Curves({"train": data}, {"train": curve(data)}), None, tmp_path / "phase.png")


def test_timestamps_are_counted_from_an_instant_on_the_axis():
    days = pd.date_range("2024-03-01", periods=4)
    record = pd.DataFrame({"date": days, "x": np.arange(4.0)})
    assert from_frame(record, time="date", states=["x"]).label("date") == "date [d since 2024-03-01]"
    two = from_frame(pd.concat([record.assign(id=name) for name in "AB"]), time="date", states=["x"], trajectory="id")
    apart = two.dates._replace(zero=two.dates.zero + np.array([0, 1], "timedelta64[D]"))
    assert replace(two, dates=apart).label("date") == "date [d]"


def test_names_are_not_read_as_mathematics(tmp_path):
    data = replace(
        waves(1), states=("$cost_{", "_x^2$"), trajectories=("$\\frac$",), time="$t$", units={"_x^2$": "漢字 $"}
    )
    curves = Curves({"train": data}, {"train": curve(data)})
    plot_fit(curves, tmp_path / "fit.png")
    plot_phase(curves, None, tmp_path / "phase.png")


def test_the_field_is_drawn_in_the_users_units(tmp_path):
    curves = split_by_trajectory(waves(4), train=2)
    points = phase_points(curves)
    assert points.shape[1] == 2
    assert 1.0 < np.abs(points).max() < 1.5
    slopes = np.stack([points[:, 1], np.where(points[:, 0] > 0.5, np.nan, -points[:, 0])], axis=1).astype(np.float32)
    plain = pixels(plot_phase(curves, None, tmp_path / "plain.png"))
    drawn = pixels(plot_phase(curves, slopes, tmp_path / "field.png"))
    assert (plain != drawn).any()


def test_a_phase_portrait_needs_two_states(tmp_path):
    data = waves(1, states=3)
    with pytest.raises(ValueError, match="2 states, got 3"):
        plot_phase(Curves({"train": data}, {"train": curve(data)}), None, tmp_path / "phase.png")


def test_titles_say_the_split_the_trajectory_and_what_is_constant_there():
    """A title was `3 (best)`, and each covariate had a flat panel."""
    data = waves(9, inputs=3)
    us = data.us.copy()
    us[..., 0], us[..., 2] = np.arange(9.0)[:, None], 4.0
    data = replace(data, us=us, inputs=("dose", "u", "$w$"), units={"dose": "mg", "0": "m"})
    figure = fit_figure(split_by_trajectory(data, train=5))
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert titles[0].startswith("train · 0 (best)\nNRMSE 0.01") and "\ndose [mg] = 0, \\$w\\$ = 4" in titles[0]
    assert titles[4].startswith("validation · 6 (median)\n") and "dose [mg] = 6" in titles[4]
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels == ["y0", "y1", "u"]
    (title,) = (axes.get_title(loc="left") for axes in fit_figure(split_by_time(waves(1))).axes[:1])
    assert title == "trajectory 0, train and validation and test   ·   NRMSE: train 0, validation 0, test 0"


def test_labels_of_low_panels_do_not_overlap():
    data = replace(
        waves(1, inputs=2), inputs=("Einstrahlung", "T_Luft"), units={"Einstrahlung": "W/m²", "T_Luft": "°C"}
    )
    figure = fit_figure(split_by_time(data))
    figure.canvas.draw()
    labels = [axes.yaxis.label for axes in figure.axes if axes.get_ylabel()]
    assert [label.get_text() for label in labels[-2:]] == ["Einstrahlung\n[W/m²]", "T_Luft [°C]"]
    upper, lower = (label.get_window_extent() for label in labels[-2:])
    assert upper.y0 > lower.y1


def test_trajectories_are_chosen_by_name():
    curves = split_by_trajectory(waves(9), train=5)
    records = collect(curves)
    assert [record.name for record, _ in select_trajectories(records, ["7", "0", "7"])] == ["7", "0"]
    assert len(fit_figure(curves, ["7", "0"]).axes) == 2 * 2
    with pytest.raises(ValueError, match=r"there is no trajectory 'S9' to plot; the data have 0, 1, 2"):
        fit_figure(curves, ["0", "S9"])
    windows = [replace(record, name=f"A[{10 * i}:{10 * i + 10}]") for i, record in enumerate(records)]
    chosen = select_trajectories(windows, ["A"])
    assert len(chosen) == 6 and {rank for _, rank in chosen} >= {"best", "worst"}


def test_chosen_trajectories_are_in_the_sample_of_thousands():
    data = waves(40)
    some = data.sample(4, ["17", "39"]).trajectories
    assert some == ("0", "13", "17", "26", "39") and data.sample(40, ["3"]) is data


def test_rows_that_starts_are_read_from_do_not_count_in_a_title():
    """The first rows, which are exact, made the error in the picture lower than that on the page."""
    data = waves(2)
    late = replace(data, scored=data.scored & (np.arange(len(TIMES)) > 5))
    ts, ys = curve(data)
    wrong = ts, ys + 0.1 * (np.arange(len(TIMES)) > 5)[None, :, None]
    plain, counted = (
        collect(Curves({"train": data}, {"train": wrong}, counted=each)) for each in ({}, {"train": late})
    )
    spread = late.ys[:, 6:].reshape(-1, 2).std(axis=0)
    assert counted[0].error == pytest.approx(np.sqrt(np.mean((0.1 / spread) ** 2)), rel=1e-6)
    assert plain[0].error < counted[0].error


def test_attempts_have_panels_and_the_best_is_that_of_the_kept_one(tmp_path, monkeypatch):
    """All attempts were one line, of which the best point was marked, though another was kept."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **more: figures.append(self) or save(self, *a, **more))
    losses = (
        (10, "as chosen", 2.0, 3.0),
        (20, "as chosen", 0.5, 0.6),
        (30, "linear", 1.5, None),
        (40, "linear", 1, None),
    )
    rows = [
        {"step": step, "stage": "main", "attempt": attempt, "train_loss": train, "validation_loss": validation}
        for step, attempt, train, validation in losses
    ]
    plot_loss(rows, tmp_path / "loss.png", "linear")
    (figure,) = figures
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["as chosen", "linear (kept)"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["training", "validation", "best: 1 at step 40"]


@pytest.mark.parametrize("validation", [0.2, None, float("nan")])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_a_loss_is_drawn(tmp_path, rows, validation):
    table = [
        {"step": 10 * i, "stage": i // 20, "train_loss": 1 / (i + 1), "validation_loss": validation, "seconds": 0.1}
        for i in range(rows)
    ]
    assert pixels(plot_loss(table, tmp_path / "loss.png")).std() > 0.01


def test_a_loss_without_positive_values_is_drawn(tmp_path):
    table = [
        {"step": i, "stage": 0, "train_loss": value, "validation_loss": None}
        for i, value in enumerate([0.0, np.inf, None])
    ]
    plot_loss(table, tmp_path / "loss.png")


@pytest.mark.slow
def test_drawing_leaves_no_global_state():
    code = """
import sys
import node_fit.plots.figures
assert "matplotlib" not in sys.modules, "matplotlib is imported at once"
import matplotlib
before = matplotlib.rcParams.copy()  # A plain dict would resolve the backend.
import pathlib, tempfile
with tempfile.TemporaryDirectory() as folder:
    node_fit.plots.figures.plot_loss([{"step": 0, "train_loss": 1.0}], pathlib.Path(folder) / "loss.png")
assert "matplotlib.pyplot" not in sys.modules, "pyplot is imported"
assert matplotlib.rcParams.copy() == before, "a global setting has changed"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_without_room_enlarge_the_picture(tmp_path):
    """Matplotlib warned that it could not lay them out, which is an error here."""
    data = replace(waves(3), trajectories=tuple(200 * "r" + str(i) for i in range(3)))
    path = plot_fit(split_by_trajectory(data, 2), tmp_path / "fit.png")
    short = plot_fit(split_by_trajectory(waves(3), 2), tmp_path / "short.png")
    assert pixels(path).shape[1] > pixels(short).shape[1]


def test_one_chunk_is_told_and_not_drawn(tmp_path, monkeypatch):
    """A point shows no course."""
    from matplotlib.axes import Axes

    texts, draw = [], Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, s, **more: texts.append(s) or draw(self, x, y, s, **more))
    row = {"step": 22, "stage": "main", "train_loss": 5.6e-4, "validation_loss": 6.6e-4}
    assert plot_loss([row], tmp_path / "loss.png").is_file()
    assert texts == ["after 22 steps, in one chunk:\ntraining 0.00056, validation 0.00066"]


def test_the_key_of_plotted_trajectories_is_a_list_of_names():
    assert trajectories_to_plot(OmegaConf.create({"plot": "auto"})) is None
    assert trajectories_to_plot(OmegaConf.create({"plot": [14, "A"]})) == ["14", "A"]
    for wrong in ("A", [], None, 3):
        with pytest.raises(ConfigError, match=r"plot must be auto or a list of trajectories, such as plot=\[A3,B1\]"):
            trajectories_to_plot(OmegaConf.create({"plot": wrong}))


def test_pictures_of_a_run_are_of_the_chosen_trajectories_and_the_kept_attempt(tmp_path, monkeypatch):
    made = {}
    monkeypatch.setattr(background, "plot_loss", lambda rows, path, kept: made.update(kept=kept))
    monkeypatch.setattr(background, "plot_fit", lambda curves, path, trajectories: made.update(shown=trajectories))
    replace(pictures(tmp_path), slopes=None, kept="linear", trajectories=["2"]).draw()
    assert made == {"kept": "linear", "shown": ["2"]}


@pytest.mark.parametrize("names", [["as chosen", "several starts"], ["equations", "as chosen"]])
def test_a_chunk_is_logged_with_its_attempt(tmp_path, monkeypatch, names):
    """The first one may be what comes before a network."""
    monkeypatch.setattr(run_logger, "leading", lambda records, state: records[0])
    idle = MagicMock(number=None)
    files = RunDirectory(tmp_path)
    files.begin_metrics(-1)
    logger = RunLogger(OmegaConf.create({}), files, idle, idle, idle)
    logger.checkpoints, state = idle, RunState(0, 0, ())
    if names[0] != "as chosen":
        Callbacks([logger]).on_opening(names[0])
    for step in (10, 20):
        logger.on_chunk_end([Record(step, "main", 1.0, None, 1.0, 0.1, 3, 0, 0.5)], state)
        logger.on_attempt(names[1], f"{names[0]} is poor")
        logger.checkpoints = idle
    assert [row["attempt"] for row in files.read_metrics()] == names


def test_a_log_begins_with_the_first_attempt_that_trains(tmp_path):
    idle = MagicMock(number=None)
    files = RunDirectory(tmp_path)
    logger = RunLogger(OmegaConf.create({"resume": None}), files, idle, idle, idle)
    logger.on_attempt("small network beside it", "the linear system is poor")
    logger.checkpoints = idle
    logger.restore(lambda *_: idle)
    files.add_metrics([Record(10, "main", 1.0, None, 1.0, 0.1, 3, 0, 0.5)], logger.attempt_name)
    assert [row["attempt"] for row in files.read_metrics()] == ["small network beside it"]
    assert not files.holds_run()
    (files.checkpoints_of(2) / f"10{SUFFIX}").touch()
    assert files.holds_run(), "its checkpoints are those of a later attempt"


def with_limits() -> tuple[Dataset, np.ndarray]:
    """A decay whose values below 0.5 are limits, and a model of it that is off by 0.05."""
    ts = np.linspace(0, 4, 40)
    exact = np.exp(-0.5 * ts)
    ys, below = np.maximum(exact, 0.5)[None, :, None], (exact < 0.5)[None, :, None]
    data = replace(Dataset.from_arrays(ts, ys, states=["x"]), censored=-below.astype(np.int8))
    return data, exact[None, :, None] + 0.05 * (exact > 0.9)[None, :, None]


def test_limits_are_triangles_and_count_in_the_title_as_in_the_scores():
    data, predicted = with_limits()
    curves = Curves({"train": data}, {"train": (data.ts, predicted)}, at_rows={"train": predicted})
    (record,) = collect(curves)
    assert record.error == pytest.approx(score_predictions(data, predicted).nrmse, rel=1e-12)
    assert record.error < 0.3 * score_predictions(replace(data, censored=None), predicted).nrmse
    figure = fit_figure(curves)
    drawn = {line.get_marker(): line for line in figure.axes[0].lines}
    below = data.censored[0, :, 0] < 0
    assert (np.isfinite(drawn["v"].get_ydata()) == below).all()
    assert (np.isfinite(drawn["o"].get_ydata()) == ~below).all()
    assert "below a limit" in [text.get_text() for text in figure.legends[0].get_texts()]
    exact = fit_figure(replace(curves, splits={"train": replace(data, censored=None)}))
    assert "v" not in [line.get_marker() for line in exact.axes[0].lines]


def test_a_curve_beyond_limits_is_seen():
    data = waves(1)
    clipped = data.clip({data.states[0]: (-0.5, 0.5)})
    ts, ys = curve(data)
    low, high = limits(collect(Curves({"train": clipped}, {"train": (ts, 1.4 * ys)})), 0)
    assert low < 1.4 * ys[..., 0].min() and high > 1.4 * ys[..., 0].max()


def test_a_legend_of_many_entries_has_several_rows():
    data, _ = with_limits()
    marks = data.censored.copy()
    marks[0, 0] = 1
    splits = {role: replace(data, censored=marks) for role in ("train", "validation", "test")}
    figure = fit_figure(Curves(splits, dict.fromkeys(splits, (data.ts, data.ys))))
    (legend,) = figure.legends
    assert len(legend.get_texts()) > 6
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_intervals_are_bars_between_their_ends():
    data, predicted = with_limits()
    ends = np.full_like(data.ys, np.nan)
    ends[0, -3:, 0] = -1.0
    data = replace(data, other_end=ends)
    curves = Curves({"train": data}, {"train": (data.ts, predicted)}, at_rows={"train": predicted})
    figure = fit_figure(curves)
    lines = {line.get_marker(): line for line in figure.axes[0].lines}
    bars = next(line for line in figure.axes[0].lines if line.get_linestyle() == "-" and line.get_marker() == "none")
    np.testing.assert_array_equal(bars.get_xydata().reshape(-1, 3, 2)[:, :2, 1], [[-1.0, 0.5]] * 3)
    np.testing.assert_array_equal(bars.get_xydata().reshape(-1, 3, 2)[:, 0, 0], data.ts[0, -3:])
    assert np.isfinite(lines["v"].get_ydata()).sum() == (data.censored < 0).sum() - 3
    assert not np.isfinite(lines["o"].get_ydata()[-3:]).any()
    assert figure.axes[0].get_ylim()[0] < -1
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "between two limits" in said and "below a limit" in said


def test_angles_count_in_a_title_as_in_the_scores():
    turned = Dataset.from_arrays(TIMES, np.linspace(0, 6, len(TIMES))[None, :, None], states=["a"])
    turned = replace(turned, angles={"a": 2 * np.pi})
    predicted = turned.ys + 2 * np.pi + 0.1
    (record,) = collect(Curves({"train": turned}, {"train": (TIMES[None], predicted)}, at_rows={"train": predicted}))
    assert record.error == pytest.approx(score_predictions(turned, predicted).nrmse, rel=1e-12) and record.error < 0.2


def test_titles_of_several_columns_are_no_wider_than_these():
    """Errors of three roles need two lines, which end between errors."""
    record = SimpleNamespace(name="blue", errors={"train": 0.0094, "validation": 0.12, "test": 0.44})
    lines = figures.column_title(record, "", 3).splitlines()
    assert lines[1:] == ["NRMSE: train 0.0094,", "validation 0.12, test 0.44"]
    assert max(map(len, lines)) <= figures.NARROW_TITLE
    alone = SimpleNamespace(name="blue", errors={"train": 0.0094})
    assert figures.column_title(alone, "", 2).splitlines()[1:] == ["NRMSE 0.0094"]
    long = SimpleNamespace(name="a file/12", errors=record.errors)
    assert figures.column_title(long, "median", 3).splitlines()[1] == "a file/12 (median)", "it would cover the next"
    assert "\n" not in figures.column_title(record, "", 1)
