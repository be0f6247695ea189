"""What a fit keeps: the model that it has ended at, or the linear one that it began with."""

import dataclasses

import equinox as eqx
import pytest
from helpers.problems import record

import node_fit as nf
from node_fit.fitting import train
from node_fit.fitting.problem import FitProblem, build_problem
from node_fit.fitting.selection import keeps_beginning


@pytest.fixture(scope="module")
def driven() -> FitProblem:
    """The problem of a driven record, which begins as a linear model."""
    splits = nf.Split()(record(400, noise=0.3))
    training = nf.Training(steps=1, chunk_steps=1)
    options = nf.Options(field="linear", hidden=1, training=training, penalty=nf.Penalty(ridge=0.0))
    return build_problem(options, splits.train, splits.validation)


def with_rates(model: nf.NeuralODE, factor: float) -> nf.NeuralODE:
    """The linear model, all rates of which are larger by a factor."""
    return eqx.tree_at(lambda each: each.field.layer.weight, model, replace_fn=lambda rates: rates * factor)


def test_the_linear_model_it_began_with_is_kept_where_it_describes_all_data_better(driven):
    assert driven.linear is not None
    drifted = with_rates(driven.model, 1.3)
    assert keeps_beginning(driven, drifted)
    assert not keeps_beginning(dataclasses.replace(driven, model=drifted), driven.model)
    assert not keeps_beginning(dataclasses.replace(driven, linear=None), drifted)


@pytest.mark.slow
def test_a_fit_that_ends_worse_than_it_began_returns_its_beginning(driven, monkeypatch):
    monkeypatch.setattr(train, "select_iterate", lambda *_: with_rates(driven.model, 1.3))
    fit = train.train([driven], [nf.Callback()])[0]
    assert fit.is_linear and fit.model.field.layer.weight.tolist() == driven.model.field.layer.weight.tolist()
    # The losses of the model that was not kept say nothing of it.
    falling = [dataclasses.replace(fit.history[-1], train_loss=loss) for loss in (2.0, 1.0)]
    ended = dataclasses.replace(fit, history=falling)
    assert ended.diagnose().kind != "unfinished"
    assert dataclasses.replace(ended, linear=None).diagnose().kind == "unfinished"
