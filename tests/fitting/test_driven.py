"""Driven records, given by their columns only: the choices of `fit`, the results, and interruptions of long chunks."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers.problems import A, B, fit_to

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.fitting.resolve import resolve
from node_fit.training.programs import Pace, StagePrograms

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def bent_record(rows: int = 700, seed: int = 1) -> nf.Dataset:
    """The linear system of the other tests with a hardening spring, and 1 % of noise."""
    rng = np.random.default_rng(seed)
    us = np.repeat(rng.normal(size=(rows // 5, 1)), 5, axis=0)
    z, ys, h = np.array([0.3, 0.0]), [], 0.1
    for u in us:
        ys.append(z[:1])
        for _ in range(10):
            k = [z]
            for share in (h / 2, h / 2, h):
                slope = A @ k[-1] + B @ u - np.array([0, 0.3 * k[-1][0] ** 3])
                k.append(z + share * slope)
            slopes = [A @ x + B @ u - np.array([0, 0.3 * x[0] ** 3]) for x in k]
            z = z + h / 6 * (slopes[0] + 2 * slopes[1] + 2 * slopes[2] + slopes[3])
    ys = np.stack(ys)
    ys = ys + 0.01 * ys.std() * rng.normal(size=ys.shape)
    return nf.Dataset.from_arrays(np.arange(rows, dtype=float), ys, us, states=("y",), inputs=("u",))


@pytest.fixture(scope="module")
def fitted() -> tuple[nf.Fit, nf.Splits]:
    splits = nf.Split()(bent_record())
    return nf.fit(splits.train, validation=splits.validation, training=nf.Training(steps=80)), splits


@pytest.mark.long
def test_columns_alone_are_enough(fitted):
    fit, splits = fitted
    chosen = {choice.key: choice.value for choice in fit.choices}
    assert 1 <= chosen["hidden"] <= 4 and chosen["solver.inputs"] == "hold" and chosen["start"] == "encoder"
    assert chosen["restarts"] == 3 and len(fit.restarts.fits) == 3  # There are 490 rows to fit.
    assert chosen["training.window"] == 128 and len(fit.model.latent) == 1 + chosen["hidden"]
    simple = fit.simple_scores(splits.train, splits.test)
    assert fit.score(splits.test).nrmse < 0.5 * simple["state-space"].nrmse
    assert simple["state-space"].nrmse < simple["linear"].nrmse
    assert not fit.is_linear


@pytest.mark.long
def test_nothing_is_returned_that_validates_worse_than_the_linear_model(fitted):
    """With a loss that leads away from the data, the linear model is what is best."""
    _, splits = fitted
    rng = np.random.default_rng(0)
    noise = rng.normal(size=splits.train.ys.shape)
    lost = dataclasses.replace(splits.train, ys=np.where(splits.train.mask, noise, np.nan))
    again = nf.fit(lost, validation=splits.validation, training=nf.Training(steps=20), options=nf.Options(restarts=1))
    validated = again.score(splits.validation).nrmse
    assert again.linear is not None
    assert validated <= 1.001 * nf.Fit.score(dataclasses.replace(again, model=again.linear), splits.validation).nrmse


def test_every_choice_can_be_overridden():
    splits = nf.Split()(bent_record())
    training = nf.Training(steps=2, chunk_steps=1, window=None)
    solver = nf.Solver("heun", rtol=1e-3, inputs="linear")
    fit = nf.fit(
        splits.train,
        hidden=0,
        start=nf.First,
        solver=solver,
        training=training,
        options=nf.Options(penalty=nf.Penalty(ridge=0.5)),
    )
    assert fit.model.latent == ("y",) and type(fit.model.start) is nf.First
    assert fit.model.solver.interpolation == "linear"
    assert {choice.key for choice in fit.choices} <= {"linear"}


class Interrupt(nf.Callback):
    """Interrupts a long chunk after a number of chunks."""

    def __init__(self, chunks: int):
        self.left = chunks
        self.told: list[int] = []

    def on_chunk_end(self, records, state):
        self.left -= 1
        return None

    def on_steps(self, step, state):
        self.told.append(step)
        return "by a test" if self.left <= 0 else None


def slow(monkeypatch) -> None:
    monkeypatch.setattr(Pace, "steps", lambda self, left: min(left, 3))


@pytest.mark.long
def test_parts_of_a_chunk_are_the_chunk(monkeypatch, fitted):
    """Progress reports within a chunk depend on the speed of the machine, and must not change any number."""
    fit, splits = fitted
    slow(monkeypatch)
    watcher = Interrupt(chunks=100)
    again = nf.fit(splits.train, validation=splits.validation, training=nf.Training(steps=40), callbacks=[watcher])
    assert watcher.told[:3] == [3, 6, 9]
    losses = [record.train_loss for record in fit.history if record.step <= 20]
    # The last chunk of a stage also judges where its last step has led.
    assert [record.train_loss for record in again.history if record.step <= 20] == losses


def test_a_long_chunk_is_interrupted_and_the_run_is_where_it_was_before(monkeypatch):
    splits = nf.Split()(bent_record())
    slow(monkeypatch)
    fit = fit_to(splits.train, validation=splits.validation, callbacks=[Interrupt(chunks=1)], steps=60, restarts=1)
    assert fit.status == "interrupted" and "by a test" in fit.reason
    assert fit.steps == 20 and {record.step for record in fit.history} == {20}
    assert np.isfinite(fit.score(splits.test).nrmse)


def test_steps_that_are_held_too_long_are_not_taken_for_a_fit(monkeypatch):
    """A loss whose held steps have errors far above their tolerance is infinite, so that no line search goes there."""
    given = []
    advance = StagePrograms.advance

    def kept(self, states, *rest):
        given.append((self, states))
        return advance(self, states, *rest)

    monkeypatch.setattr(StagePrograms, "advance", kept)
    splits = nf.Split()(bent_record())
    nf.fit(splits.train, training=nf.Training(steps=4, chunk_steps=2))
    programs, (state, *_) = given[-1]
    assert 100 <= float(state.error_limit) < np.inf
    strict = dataclasses.replace(state, error_limit=np.float32(0.0))
    assert not np.isfinite(advance(programs, [strict]).states[0].chosen.loss)
    assert np.isfinite(advance(programs, [state]).states[0].chosen.loss)


def test_a_fit_without_windows_says_that_hidden_states_are_not_chosen():
    data = nf.read_table(ROOT / "data" / "house.csv", time="minutes", states=["room"], inputs=["heater"])
    plan = resolve(nf.Options(training=nf.Training(window=None)), Facts.of(data))
    assert plan.options.hidden == 0
    assert any("only chosen for fits in windows" in str(choice) for choice in plan.choices)
