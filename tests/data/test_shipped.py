"""Shipped records are fitted by their names alone."""

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

import node_fit as nf
from node_fit.app.config.build import build_parts
from node_fit.app.launching import register
from node_fit.data.dataset import Splits
from node_fit.data.facts import Facts
from node_fit.evaluation.diagnosis import FITS
from node_fit.fitting.resolve import resolve
from node_fit.model.make_model import maker_class

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "data").glob("*.csv"))


def read(name: str) -> tuple[nf.Options, Splits]:
    """The options and the data of `python -m node_fit data=NAME`."""
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        parts = build_parts(compose("config", [f"data={name}"]))
    return parts.options, parts.load_with_notes()[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_record_has_a_recipe(name):
    options, splits = read(name)
    facts = Facts.of(splits.train, splits.validation)
    plan = resolve(options, facts).options
    assert plan.training.steps and plan.training.window != "auto"
    spans_decades = name == "robertson"
    assert bool(facts.decades) == spans_decades == (maker_class(plan.field) is nf.LogTimeMLP)
    if not spans_decades:
        assert plan.solver.stepping == "held"


@pytest.mark.long
@pytest.mark.slow
def test_a_stiff_record_over_ten_decades_of_time_is_fitted():
    _, splits = read("robertson")
    fit = nf.fit(splits.train, options=nf.Options(effort="quick"), progress=False)
    assert fit.status != "failed" and fit.diagnose().kind in FITS
    assert np.isfinite(fit.predict(splits.train)).all() and fit.score(splits.train).nrmse < 0.25
