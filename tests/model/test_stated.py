"""Starts that expressions give: shared constants, covariates, intervals and refusals."""

import functools
import re

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary

import node_fit as nf
from node_fit.evaluation.metrics import score_rows
from node_fit.runtime.placement import carry

pytestmark = pytest.mark.slow

DECAY = functools.partial(nf.Known, equations={"x": "-k*x"}, constants={"k": [0.5, 0.0, None]})


def decays(doses: tuple[float, ...], share: float = 0.6, k: float = 0.8, noise: float = 0.0) -> nf.Dataset:
    """What is left of a share of each dose."""
    ts, dose = np.linspace(0, 4, 21), np.array(doses)
    ys = share * dose[:, None] * np.exp(-k * ts) + noise * np.random.default_rng(0).normal(size=(len(dose), 21))
    us = np.broadcast_to(dose[:, None], ys.shape)
    return nf.Dataset.from_arrays(ts, ys[..., None], us[..., None], states=["x"], inputs=["dose"])


def test_a_share_of_each_dose_is_recovered_with_its_interval():
    start = functools.partial(nf.Stated, values={"x": "F*dose"}, constants={"F": [0.3, 0.0, 1.0]})
    fit = nf.fit(decays((1.0, 2.0, 4.0), noise=0.01), field=DECAY, start=start, options=nf.Options(precision="x64"))
    assert fit.model.constants() == pytest.approx({"k": 0.8, "F": 0.6}, rel=0.02)
    interval = fit.confidence().constants["F"]
    assert interval.lower < interval.estimate < interval.upper < 1.1 * interval.lower
    np.testing.assert_allclose(fit.predict(decays((3.0,))), decays((3.0,)).ys, atol=0.03)


def test_a_constant_is_a_start_that_all_share_and_the_first_row_counts():
    data = decays((2.0, 2.0), noise=0.05)
    start = functools.partial(nf.Stated, values={"x": "x0"}, constants={"x0": 1.0})
    fit = nf.fit(data, field=DECAY, start=start, options=nf.Options(precision="x64"))
    assert fit.model.constants()["x0"] == pytest.approx(1.2, abs=0.05)
    assert fit.mask_start_rows(data).mask[:, 0].all()


def test_other_states_start_at_their_first_measurement():
    field = functools.partial(nf.Known, equations={"x": "-k*x", "z": "k*x", "h": "0"}, constants={"k": 0.8})
    data = decays((1.0, 3.0))
    whole = nf.Dataset.from_arrays(
        data.ts, np.concatenate([data.ys, 5 - data.ys], axis=2), data.us, states=["x", "z"], inputs=["dose"]
    )
    start = functools.partial(nf.Stated, values={"h": "2*dose"})
    model = nf.make_model(whole, field=field, start=start, hidden=["h"], key=jax.random.key(0))
    batch = carry(model.batch(whole), np.float32)
    found = model.system.scaler.unscale_states(np.asarray(model.first_states(batch)))
    np.testing.assert_allclose(found, [[0.6, 4.4, 2.0], [1.8, 3.2, 6.0]], rtol=1e-5)
    assert not score_rows(model.start, whole).mask[:, 0].any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"values": {"y": "1"}}, "start.values has 'y', which is not a state; the states are x"),
        ({"values": {"x": "F*dos"}, "constants": {"F": 0.5}}, "'dos' is not a state, an input"),
        (
            {"values": {"x": "dose"}, "constants": {"F": 0.5}},
            "start.constants names 'F', which occurs in no expression",
        ),
        ({"values": {"x": "k"}, "constants": {"k": 0.5}}, "'k' is a constant of the field and of the start"),
    ],
)
def test_wrong_starts_are_refused(given, said):
    start = functools.partial(nf.Stated, **given)
    with pytest.raises(ValueError, match=re.escape(said)):
        nf.make_model(decays((1.0, 2.0)), field=DECAY, start=start, key=jax.random.key(0))


def test_the_command_reports_the_start_and_the_model_is_read_back(tmp_path):
    data = decays((1.0, 2.0, 4.0))
    rows = [np.column_stack([np.full(21, i), data.ts[i], data.us[i], data.ys[i]]) for i in range(3)]
    np.savetxt(tmp_path / "x.csv", np.concatenate(rows), delimiter=",", header="id,t,dose,x", comments="")
    ran = node_fit(
        tmp_path, "data=table", "data.path=x.csv", "data.time=t", "data.states=[x]", "data.covariates=[dose]",
        "data.trajectory=id", "field=known", "+field.equations={x: -k*x}", "+field.constants={k: [0.5, 0, null]}",
        "start=stated", "+start.values={x: F*dose}", "+start.constants={F: [0.3, 0, 1]}", "data.split.test=0",
        "data.split.validation=0", "precision=x64", "hydra.run.dir=run",
    )  # fmt: skip
    assert ran.code == 0, ran
    summary = read_summary(tmp_path / "run")
    assert summary["constants"] == pytest.approx({"k": 0.8, "F": 0.6}, rel=1e-3)
    assert summary["confidence"]["constants"]["F"]["lower"] > 0.59
    model = nf.load(tmp_path / "run" / "model.safetensors")
    assert model.constants() == pytest.approx({"k": 0.8, "F": 0.6}, rel=1e-3)


INFLOW = (
    "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "hidden=[tank]", "field=known",
    "field.equations={x: q*tank, tank: -q*tank}", "+field.constants={q: [0.5, 0, null]}", "data.split.validation=0",
    "data.split.test=0", "optimizer=lm", "recipe=direct", "report=false",
)  # fmt: skip


@pytest.mark.parametrize(
    "known",
    [
        ("start=first", "start.absent=20", "training.freeze=[start.hidden]"),
        ("+start.absent.tank=20",),
        ("start=fitted", "+start.absent.tank=20"),
    ],
)
def test_the_command_knows_the_start_of_a_hidden_state(tmp_path, known):
    ts = np.linspace(0, 6, 25)
    pd.DataFrame({"t": ts, "x": 20 * (1 - np.exp(-0.8 * ts))}).to_csv(tmp_path / "mine.csv", index=False)
    done = node_fit(tmp_path, *INFLOW, *known, "hydra.run.dir=run")
    assert done.code == 0, done.err
    summary = read_summary(tmp_path / "run")
    assert summary["constants"]["q"] == pytest.approx(0.8, rel=1e-3)
    assert summary["start"].endswith("; tank = 20 (start.absent)") and summary["start"] in done.out
    # The model file knows it too: a prediction needs no more than the first measurement.
    ran = node_fit(tmp_path, "run", "--data", "mine.csv", "--out", "new.csv", module="node_fit.predict")
    assert ran.code == 0, ran.err
    np.testing.assert_allclose(
        pd.read_csv(tmp_path / "new.csv")["x_predicted"].iloc[-1], 20 * (1 - np.exp(-4.8)), rtol=1e-2
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("start.rows=3",), "start.rows needs the name of a rule; write it before, such as start=encoder."),
        (("+start.rows=3",), "start.rows needs the name of a rule; write it before, such as start=encoder."),
        (("+start.absent.tnk=20",), "start.absent names 'tnk', which is not a state; the states are x, tank."),
        (("+start.absent.x=20",), "start=stated start.values={x: 20}."),
    ],
)
def test_the_command_says_how_to_write_a_known_start(tmp_path, words, sentence):
    pd.DataFrame({"t": np.arange(9.0), "x": np.arange(9.0)}).to_csv(tmp_path / "mine.csv", index=False)
    assert sentence in node_fit(tmp_path, *INFLOW, *words).sentence
