"""What is printed where a terminal is narrow, or a table has many channels."""

import io

import pytest
from rich.console import Console

from node_fit.app.console import (
    MOST_PRINTED_CHANNELS,
    MOST_PRINTED_EQUATIONS,
    print_equations,
    print_scores,
    with_intervals,
)
from node_fit.fitting.progress import at_most
from node_fit.report.page import explain_term


def scores(names, nrmse):
    channels = {name: {"rmse": 1.0, "nrmse": value, "r2": 0.5} for name, value in zip(names, nrmse, strict=True)}
    return {"rmse": 1.0, "nrmse": 0.25, "r2": 0.5, "channels": channels}


def shown(width: int, names, nrmse) -> str:
    score, file = scores(names, nrmse), io.StringIO()
    baselines = {kind: {"train": score} for kind in ("mean", "persistence", "linear")}
    print_scores(Console(file=file, width=width), {"metrics": {"train": score, "test": None}, "baselines": baselines})
    return file.getvalue()


@pytest.mark.parametrize("width", [20, 80, 120])
def test_scores_are_readable_at_any_width(width):
    text = shown(width, ["hare", "lynx"], [0.125, 0.375])
    assert "…" not in text
    assert all(word in text for word in ("train", "hare", "lynx", "0.125", "0.375", "persistence"))


def test_of_many_channels_the_worst_are_shown():
    names = [f"c{index:02}" for index in range(20)]
    text = shown(80, names, [index / 100 for index in range(20)])
    lines = text.splitlines()
    assert [name for line in lines for name in names if name in line.split()] == names[::-1][:MOST_PRINTED_CHANNELS]
    assert "0.25" in text and "of 20 channels, the 6 with the highest NRMSE are shown; summary.json holds all" in text
    none = shown(80, names, [None, *[0.1] * 19])
    assert "c00" in none.splitlines()[3]


@pytest.mark.parametrize(
    ("r2", "text"),
    [(0.5, "0.5"), (0.973, "0.973"), (0.99969, "0.99969"), (1.0, "1"), (None, "–")],
)
def test_r2_is_only_1_where_nothing_is_left(r2, text):
    assert explain_term(r2) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(10.0, ""), (60.0, ", at most 60 s more"), (300.0, ", at most 5 min more")]
)
def test_a_long_stage_says_how_long(seconds, text):
    assert at_most(seconds) == text


@pytest.mark.parametrize(
    ("choices", "keys", "printed"),
    [({"field": {}}, None, True), ({}, ["field", "optimizer"], True), ({"start": {}}, ["hidden"], False)],
)
def test_equations_are_printed_unless_they_were_given(choices, keys, printed):
    file = io.StringIO()
    attempts = [] if keys is None else [{"kept": False, "keys": []}, {"kept": True, "keys": keys}]
    model = {"readout": {"y": "2*x - u"}}
    summary = {"equations": {"x": "-0.5*x"}, "choices": choices, "attempts": attempts, "model": model}
    print_equations(Console(file=file), summary)
    assert file.getvalue() == ("equations:\n  dx/dt = -0.5*x\n  y = 2*x - u\n" if printed else "")


def test_many_equations_are_left_to_the_page():
    file = io.StringIO()
    texts = {f"z{number}": "-z0" for number in range(MOST_PRINTED_EQUATIONS + 1)}
    print_equations(Console(file=file), {"equations": texts, "choices": {"field": {}}, "attempts": []})
    assert file.getvalue() == f"equations: {len(texts)}, which the page and summary.json list\n"


def test_a_constant_that_is_held_is_said_to_be():
    interval = {"k": {"estimate": 0.3, "standard_error": 0.01, "lower": 0.28, "upper": 0.32}}
    values = {"k": 0.3, "g": 0.14}
    assert with_intervals(values, interval, "held").endswith("], g = 0.14 (held)")
    assert with_intervals(values, {}, "held") == "k = 0.3, g = 0.14"  # Nothing is known of either.
