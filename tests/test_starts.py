"""Several initial networks, of which the best is kept."""

import jax
import pytest
from conftest import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.fitting.preparation import APART

OPTIONS = {"recipe": "direct", "optimizer": nf.Adam(1e-2), "field": SMALL, "steps": 40, "chunk_steps": 20, "ridge": 0.0}


def test_the_best_of_several_starts_is_kept():
    """As good as the best of separate fits with their seeds, in one program."""
    data, held = rotation(), rotation(2, times=8)
    several = fit_to(data, validation=held, starts=3, seed=1, **OPTIONS)
    alone = [fit_to(data, validation=held, seed=1 + APART * start, **OPTIONS) for start in range(3)]
    scores = [fit.score(held).nrmse for fit in alone]
    assert several.score(held).nrmse == pytest.approx(min(scores), rel=1e-3)
    assert max(scores) > 1.05 * min(scores), "the starts do not differ, so the test is void"
    assert {record.member for record in several.history} == {0, 1, 2}
    assert isinstance(several.model, nf.NeuralODE)


def test_autonomous_data_begin_once():
    assert fit_to(rotation(), steps=2, field=SMALL).options.training.starts == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ensemble": 2, "starts": 2}, "an ensemble keeps all"),
        ({"starts": 0}, "starts must be at least 1, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_to(rotation(), steps=2, **options)


def test_a_model_that_goes_on_has_one_start():
    model = nf.make_model(rotation(), field=SMALL, key=jax.random.key(0))
    with pytest.raises(ValueError, match="starts draws new networks"):
        fit_to(rotation(), steps=2, starts=2, model=model)
