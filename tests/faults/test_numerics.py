"""NaN losses, diverging trajectories and hopeless problems, with the real solver and training loop."""

import functools
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.callbacks import GoOn, Rows, Stop, assert_equal, rows
from helpers.commands import write_table
from helpers.problems import fit_to, rotation
from jaxtyping import Array
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.predict import main
from node_fit.runtime.placement import carry
from node_fit.storage.model_file import save
from node_fit.training.step import CAUTION, HOPELESS_STEPS, RESTARTS

pytestmark = pytest.mark.slow


class Edge(eqx.Module):
    """A rotation whose rates and gradients are NaN if its parameter is below a threshold; the data need a lower
    value."""

    rate: Array

    def __init__(self, states: int, inputs: int, *, key):
        self.rate = jnp.ones(())

    def __call__(self, t, y, u):
        return jnp.stack([-y[1], y[0]]) * (self.rate - 1.5) + jnp.sqrt(self.rate - 0.5)


def over_the_edge(callback=None, optimizer=None):
    options = {"recipe": "direct", "scale": False, "ridge": 0.0, "steps": 200, "chunk_steps": 20}
    optimizer = optimizer or nf.Adam(0.3, schedule="constant")
    return fit_to(rotation(), field=Edge, optimizer=optimizer, callbacks=[callback], **options)


def test_what_is_not_finite_is_stepped_back_from_with_smaller_steps():
    watcher = Rows()
    fit = over_the_edge(watcher)
    assert fit.status == "stopped" and "in a row were not finite" in fit.reason
    losses = [record.train_loss for record in fit.history]
    assert float(watcher.state.members[0].best.loss) == min(losses) < losses[0]
    assert np.isfinite(fit.model.field.rate) and fit.model.field.rate > 0.5
    assert int(watcher.state.members[0].restarts) == RESTARTS
    assert sum(record.failed_solves for record in fit.history) == HOPELESS_STEPS * (RESTARTS + 1)
    np.testing.assert_allclose(fit.history[-1].learning_rate, 0.3 * CAUTION**RESTARTS, rtol=1e-5)


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_that_stepped_back_resumes_bit_for_bit(after, tmp_path):
    whole = over_the_edge()
    part = over_the_edge(Stop(tmp_path, after))
    rest = over_the_edge(GoOn(tmp_path))
    assert len(part.history) == after
    assert rows(part.history) + rows(rest.history) == rows(whole.history)
    assert (rest.status, rest.reason, rest.compiles) == (whole.status, whole.reason, 0)
    assert_equal(rest.model, whole.model)


def test_a_line_search_that_fails_leaves_the_best():
    watcher = Rows()
    fit = over_the_edge(watcher, nf.LBFGS())
    assert fit.status == "converged" and fit.reason
    assert float(watcher.state.members[0].best.loss) == min(record.train_loss for record in fit.history)
    assert np.isfinite(fit.model.field.rate) and fit.steps < 150


def decay(*starts: float, times: int = 12) -> nf.Dataset:
    ts = np.linspace(0.0, 3.0, times)
    return nf.Dataset.from_arrays(ts, np.exp(-ts)[None, :, None] * np.array(starts)[:, None, None], states=("x",))


def known(equation: str, **constants: float):
    return functools.partial(nf.Known, equations={"x": equation}, constants=constants)


@pytest.mark.parametrize(
    "equation, reason",
    [("-a*x + 0.01*x**3", "where it runs away"), ("-a*x - 1e9*(x - 10)*(tanh(3*(x - 10)) + 1)", "takes all its steps")],
    ids=["away", "stiff"],
)
def test_trajectories_that_cannot_be_solved_are_counted_named_and_hold_no_other_up(equation, reason):
    data = decay(1.0, 0.5, 30.0, 40.0)
    watcher = Rows()
    options = {"steps": 60, "chunk_steps": 20, "recipe": "direct", "scale": False, "ridge": 0.0}
    options |= {"start": "first", "optimizer": nf.LBFGS(memory=49)}  # None of the defaults of equations.
    fit = fit_to(data, field=known(equation, a=0.5), callbacks=[watcher], **options)
    assert fit.status != "failed"
    # The first held steps are too long, so their loss may be low but wrong. The best point belongs to the current ones.
    assert fit.history[-1].failed_solves > 0
    assert fit.history[-1].train_loss > 1e4
    assert_equal(watcher.state.members[0].best.params, watcher.state.members[0].chosen.params)
    assert np.isfinite(fit.predict(data)[:2]).all()
    diagnosis = fit.diagnose(data)
    assert diagnosis.kind == "unstable"
    assert "trajectory '2' can't be simulated beyond t = " in diagnosis.sentence and reason in diagnosis.sentence
    assert "2 of 4 can't; the others: '3'" in diagnosis.sentence


@pytest.mark.parametrize(
    "equation, optimizer",
    [
        ("a*1e6*x**3", nf.Adam()),
        ("-a*1e7*(x - cos(t))", nf.LBFGS()),
        ("-a*1e7*(x - cos(t))", nf.LevenbergMarquardt()),
    ],
    ids=["away", "stiff", "stiff, damped"],
)
def test_a_problem_without_hope_ends_at_once_with_a_hint(equation, optimizer):
    options = {"steps": 2000, "recipe": "direct", "scale": False, "ridge": 0.0}
    fit = fit_to(decay(1.0, 2.0), field=known(equation, a=1.0), optimizer=optimizer, **options)
    assert fit.status == "failed"
    assert all(word in fit.reason for word in ("scale of the data", "tolerances", "implicit solver"))
    assert fit.steps <= HOPELESS_STEPS + 1
    assert fit.diagnose(decay(1.0, 2.0)).kind == "failed"


def test_where_nothing_is_solved_but_the_loss_falls_there_is_a_warning_and_hope(caplog):
    """The solution diverges half-way; the part before that still gives a useful gradient."""
    options = {"optimizer": nf.Adam(0.05, schedule="constant"), "steps": 60, "chunk_steps": 5}
    with caplog.at_level(logging.WARNING):
        fit = fit_to(decay(1.0), field=known("a*x**2", a=1.0), recipe="direct", scale=False, ridge=0.0, **options)
    assert "not one trajectory could be simulated" in caplog.text
    assert fit.status != "failed"
    assert fit.history[0].failed_solves == 5 and fit.history[-1].failed_solves == 0


def test_nothing_is_wasted_on_the_plateau_of_float32():
    fit = fit_to(rotation(), field=nf.Linear, optimizer=nf.LBFGS(), steps=20000, recipe="direct", precision="x32")
    assert fit.status == "converged" and ("stalled" in fit.reason or "finds no lower" in fit.reason)
    best = min(record.train_loss for record in fit.history)
    steps = [record.step for record in fit.history if record.train_loss <= 1.01 * best]
    assert best < 1e-8 and fit.steps - steps[0] <= 600 and fit.steps < 2000


def test_a_prediction_that_blows_up_is_written_as_far_as_it_goes(tmp_path, monkeypatch, capsys):
    data = decay(-1.0, 1.0, -0.5)
    run = tmp_path / "run"
    run.mkdir()
    model = nf.make_model(data, field=known("x**2"), scaling=nf.Scaling(affine=False), key=jax.random.key(0))
    save(carry(model, np.float32), run / "model.safetensors")
    table = {"_target_": "node_fit.Table", "path": "mine.csv", "time": "t", "states": ["x"], "trajectory": "id"}
    OmegaConf.save(OmegaConf.create({"extensions": [], "data": table}), run / "config.yaml")
    ids = zip("ABC", data.ts, data.ys[..., 0], strict=True)
    write_table(tmp_path / "mine.csv", [{"id": i, "t": t, "x": x} for i, ts, xs in ids for t, x in zip(ts, xs)])  # noqa: B905
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["predict", "run", "--data", "mine.csv", "--out", "out.csv"])
    main()
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("warning: trajectory 'B' can't be simulated beyond t = 0.8")
    assert "out.csv" in out
    import pandas as pd

    written = pd.read_csv("out.csv")
    alive = written[written["trajectory"] == "B"].query("t < 1")
    np.testing.assert_allclose(alive["x_predicted"], 1 / (1 - alive["t"]), rtol=1e-3)
    assert written[written["trajectory"] == "B"].query("t > 1")["x_predicted"].isna().all()
    assert written[written["trajectory"] != "B"]["x_predicted"].notna().all()
    assert "inf" not in (tmp_path / "out.csv").read_text()
