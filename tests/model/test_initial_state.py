"""Several starts: the best of many optima is kept, and the table says how often it was found."""

import functools
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.fitting.problem import SEEDS_APART
from node_fit.fitting.selection import Restart, Restarts
from node_fit.model.fields.known import Constants
from node_fit.plots.figures import plot_starts

pytestmark = pytest.mark.slow

TS = np.linspace(0.0, 5.0, 60)
RATE = 3.0
EQUATIONS = {"x": "v", "v": "-w**2*x"}
OPTIONS = {
    "field": functools.partial(nf.Known, equations=EQUATIONS, constants={"w": [0.9, 0.0, None]}),
    "recipe": "direct",
    "solver": nf.Solver("heun"),
    "precision": "x64",
    "ridge": 0.0,
    "steps": 60,
}


def oscillation() -> nf.Dataset:
    """A harmonic oscillation, whose frequency has an optimum for each number of periods."""
    ys = np.stack([np.cos(RATE * TS), -RATE * np.sin(RATE * TS)], axis=1)
    return nf.Dataset.from_arrays(TS, ys + 0.02 * np.random.default_rng(0).normal(size=ys.shape), states=["x", "v"])


@pytest.mark.long
def test_the_best_of_many_optima_is_kept():
    alone = fit_to(oscillation(), **OPTIONS)
    assert alone.restarts is None and abs(alone.model.constants()["w"] - RATE) > 0.5
    fit = fit_to(oscillation(), restarts=32, **OPTIONS)
    assert fit.model.constants()["w"] == pytest.approx(RATE, rel=1e-2)
    starts = fit.restarts
    assert len(starts.fits) == 32 and 1 <= starts.found < 32
    best = min(starts.fits, key=lambda each: each.loss)
    assert best.constants == pytest.approx(fit.model.constants()) and starts.best == best.loss
    assert starts.fits[0].constants["w"] == pytest.approx(alone.model.constants()["w"], rel=1e-4)
    assert starts.next_best is not None and starts.next_best > 2 * starts.best
    assert f"{starts.found} of 32 starts found the best optimum" in str(starts)
    # One fit remains, so it has intervals.
    w = fit.confidence().constants["w"]
    assert w.lower < RATE < w.upper


def test_training_data_decide_between_equations_from_several_starts():
    """Validation data only judge them."""
    data = oscillation()
    fit = fit_to(data.until(3.5), validation=data.score_after(3.5), restarts=8, **OPTIONS)
    last = {record.member: record for record in fit.history}
    assert len(last) == 8 and all(record.validation_loss is None for record in fit.history)
    # Steps that are refined change losses a little.
    assert fit.restarts.best == pytest.approx(min(record.train_loss for record in last.values()), rel=0.05)


def test_constants_lie_around_the_given_ones():
    given = Constants.of({"a": [2.0, 1.0, None], "b": [0.3, 0.0, 1.0], "c": -4.0, "d": [1.0, None, 3.0], "e": 0.0})
    shares = np.linspace(0, 1, 101)[:, None] * np.ones(5)
    raw = given.around(shares, 10.0)
    found = [replace(given, raw=jnp.asarray(each)).as_dict() for each in raw]
    around = {name: np.array([each[name] for each in found]) for name in given.names}
    logs = np.linspace(-1, 1, 101)
    for name, distance in (("a", around["a"] - 1), ("c", -around["c"] / 4), ("d", (3 - around["d"]) / 2)):
        assert np.allclose(np.log10(distance), logs, atol=1e-5), name
    assert np.allclose(around["b"], np.linspace(0.01, 0.99, 101), atol=1e-6)
    assert np.allclose(around["e"], logs)


def test_optima_are_counted():
    starts = Restarts(tuple(Restart("completed", loss, {"k": 1.0}) for loss in (2.0, 1.0, 1.005, math.inf, 1.5)))
    assert (starts.best, starts.found, starts.next_best) == (1.0, 2, 1.5)
    assert starts.losses == (2.0, 1.0, 1.005, math.inf, 1.5)
    table = json.loads(json.dumps(starts.as_dict(), allow_nan=False))["table"]
    assert table[3]["loss"] is None and table[1] == {
        "start": 1, "status": "completed", "loss": 1.0, "constants": {"k": 1.0},
    }  # fmt: skip
    lost = Restarts((Restart("failed", math.inf, {}),))
    assert lost.found == 0 and lost.next_best is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restarts": 0}, "restarts must be at least 1, got 0"),
        ({"restarts": 3, "ensemble": 2}, "an ensemble keeps all"),
    ],
)
def test_what_can_t_be(options, words):
    with pytest.raises(ValueError, match=words):
        fit_to(oscillation(), **options, **OPTIONS)


def test_a_model_that_goes_on_has_one_start():
    model = nf.make_model(oscillation(), field=OPTIONS["field"], key=jax.random.key(0))
    with pytest.raises(ValueError, match="starts draws new models"):
        fit_to(oscillation(), **OPTIONS, restarts=2, model=model)


def test_the_best_network_is_kept():
    """As good as the best of separate fits with the seeds of the starts."""
    options = {"recipe": "direct", "optimizer": nf.Adam(1e-2), "field": SMALL, "steps": 40, "ridge": 0.0}
    data, held = rotation(), rotation(2, times=8)
    several = fit_to(data, validation=held, restarts=3, seed=1, **options)
    alone = [fit_to(data, validation=held, seed=1 + SEEDS_APART * start, **options) for start in range(3)]
    scores = [fit.score(held).nrmse for fit in alone]
    assert several.score(held).nrmse == pytest.approx(min(scores), rel=1e-3)
    assert max(scores) > 1.05 * min(scores), "the starts do not differ, so the test is void"
    assert {record.member for record in several.history} == {0, 1, 2}
    assert alone[0].options.restarts == 1, "autonomous data begin once"


def test_a_waterfall_without_numbers_is_drawn(tmp_path):
    for losses in ((1.0, 0.1, math.inf), (math.inf,), (0.0, 1.0)):
        assert plot_starts(losses, tmp_path / "starts.png").stat().st_size > 1000


def test_the_command_tells_shows_and_draws(tmp_path):
    data = oscillation()
    pd.DataFrame({"t": TS, "x": data.ys[0, :, 0], "v": data.ys[0, :, 1]}).to_csv(tmp_path / "mine.csv", index=False)
    done = node_fit(
        tmp_path, "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x,v]", "data.split.by=time",
        "data.split.validation=0", "data.split.test=0", "field=known", 'field.equations={x: v, v: "-w**2*x"}',
        "+field.constants={w: [0.9, 0, null]}", "solver=heun", "recipe=direct", "precision=x64", "restarts=12",
        "training.steps=60", "hydra.run.dir=run",
    )  # fmt: skip
    assert done.code == 0, done.err
    told = read_summary(tmp_path / "run")["starts"]
    assert len(told["table"]) == 12 and told["found"] >= 1
    assert f"starts: {told['found']} of 12 starts found the best optimum" in done.out
    assert (tmp_path / "run" / "plots" / "starts.png").is_file()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>Starts</h2>" in page and 'id="starts"' in page
