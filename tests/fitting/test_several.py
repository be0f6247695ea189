"""Several fits at once: they equal separate fits, use as few programs as possible, and have their own callbacks."""

from dataclasses import fields, replace

import numpy as np
import pytest
from helpers.callbacks import GoOn, Rows, Stop, assert_equal, rows
from helpers.problems import SMALL, Quadratic, fit_to, grouped, rotation

import node_fit as nf

pytestmark = pytest.mark.slow


def chosen(rate: float = 1e-2, seed: int = 0, width: int = 8, **options) -> nf.Options:
    recipe = [nf.Stage(Quadratic(), nf.Adam(rate), 10)]
    field = SMALL if width == 8 else nf.Linear
    return nf.Options(**grouped(**{"field": field, "recipe": recipe, "chunk_steps": 5, "seed": seed, **options}))


def alone(one: nf.Options, **options) -> nf.Fit:
    given = {field.name: getattr(one, field.name) for field in fields(one)}
    return fit_to(rotation(), **given, **options)


@pytest.mark.usefixtures("without_cache")
def test_fits_with_other_numbers_and_seeds_are_members_of_one_program():
    options = [chosen(rate, seed, precision="x64") for rate in (1e-2, 3e-3) for seed in (0, 7)]
    fits = nf.fit_several(rotation(), options, validation=rotation(2))
    assert [fit.compiles for fit in fits] == [1, 0, 0, 0]
    for one, fit in zip(options, fits, strict=True):
        single = alone(one, validation=rotation(2))
        assert (fit.status, fit.reason, fit.steps) == (single.status, single.reason, single.steps)
        for mine, theirs in zip(fit.history, single.history, strict=True):
            np.testing.assert_allclose(mine.train_loss, theirs.train_loss, rtol=1e-9)
            np.testing.assert_allclose(mine.validation_loss, theirs.validation_loss, rtol=1e-9)
            np.testing.assert_allclose(mine.learning_rate, theirs.learning_rate, rtol=1e-9)
        np.testing.assert_allclose(fit.predict(rotation()), single.predict(rotation()), rtol=1e-6)


def test_fits_that_can_not_share_a_program_have_their_own():
    options = [chosen(), chosen(width=0), chosen(seed=3)]
    fits = nf.fit_several(rotation(), options)
    for one, fit in zip(options, fits, strict=True):
        single = alone(one)
        assert type(fit.model.field) is type(single.model.field)
        np.testing.assert_allclose(fit.history[-1].train_loss, single.history[-1].train_loss, rtol=1e-4)


def test_each_callback_is_told_of_its_own_fit():
    watchers = [Rows(), Rows()]
    fits = nf.fit_several(rotation(), [chosen(), chosen(seed=1)], callbacks=watchers)
    for watcher, fit in zip(watchers, fits, strict=True):
        assert watcher.state.members[0].step.shape == ()
        assert float(watcher.state.members[0].chosen.loss) == fit.history[-1].train_loss


def test_a_fit_that_was_interrupted_among_others_goes_on_alone(tmp_path):
    options = [chosen(), chosen(seed=1)]
    folders = [tmp_path / "0", tmp_path / "1"]
    whole = nf.fit_several(rotation(), options)
    part = nf.fit_several(rotation(), options, callbacks=[Stop(folders[0], 1), Stop(folders[1], 9)])
    assert [fit.status for fit in part] == ["interrupted", "interrupted"]
    rest = alone(options[1], callbacks=[GoOn(folders[1])])
    np.testing.assert_allclose(rest.history[-1].train_loss, whole[1].history[-1].train_loss, rtol=1e-4)
    assert rows(part[1].history)[0] == rows(whole[1].history)[0]


def test_options_that_can_not_be_fitted_do_not_stop_the_others():
    fits = nf.fit_several(rotation(), [chosen(), chosen(chunk_steps=5, hidden=-1), chosen(seed=1)])
    assert [isinstance(fit, nf.Fit) for fit in fits] == [True, False, True]
    assert isinstance(fits[1], ValueError) and "hidden" in str(fits[1])


def test_one_alone_is_a_fit():
    (several,) = nf.fit_several(rotation(), [chosen()])
    assert_equal(several.model, alone(chosen()).model)


def test_precisions_do_not_mix():
    with pytest.raises(ValueError, match="precision"):
        nf.fit_several(rotation(), [chosen(precision="x32"), chosen(precision="x64")])


def test_angles_do_not_mix():
    with pytest.raises(ValueError, match="different angles can't run together"):
        nf.fit_several(rotation(), [chosen(), replace(chosen(), scaling=nf.Scaling(angles=("x",)))])
