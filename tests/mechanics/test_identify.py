"""The mechanism behind columns: which states are velocities, and constants beside the true ones."""

import functools

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.mechanics.identify import find_mechanism
from node_fit.mechanics.pairing import pair_states, pair_velocities

ROWS, STEP = 300, 0.02
M, D, F, G = 0.8, 0.3, 0.5, 6.0


def pendulum(seed: int, held: bool = False, records: int = 3) -> nf.Dataset:
    """A pendulum with dry friction; an encoder counts its angle in 4,096 steps of a turn, and its rate has noise."""
    draw, ts = np.random.default_rng(seed), np.arange(ROWS) * STEP
    ys, us = [], []
    for _ in range(records):
        size, rate, phase = draw.normal(size=6) * 3, draw.uniform(1, 8, 6), draw.uniform(0, 6, 6)

        def torque(t, size=size, rate=rate, phase=phase):
            return np.sin(np.multiply.outer(t, rate) + phase) @ size

        u = torque(ts)

        def slope(t, x, u=u, torque=torque):
            force = u[min(int(t / STEP + 1e-9), ROWS - 1)] if held else torque(t)
            return [x[1], (force - G * np.sin(x[0]) - D * x[1] - F * np.tanh(x[1] / 0.05)) / M]

        solved = solve_ivp(
            slope, (0, ts[-1]), [draw.normal() * 0.5, 0.0], t_eval=ts, rtol=1e-7, atol=1e-8, max_step=STEP
        )
        count = 2 * np.pi / 4096
        angle = np.round(solved.y[0] / count) * count
        ys.append(np.stack([solved.y[1] + draw.normal(size=ROWS) * 0.02, angle], axis=1))
        us.append(u[:, None])
    return nf.Dataset.from_arrays(
        np.tile(ts, (records, 1)), np.stack(ys), np.stack(us), states=["rate", "swing"], inputs=["torque"]
    )


@pytest.mark.parametrize("held", [False, True])
def test_a_pendulum_with_dry_friction_is_found(held: bool):
    data = pendulum(0, held)
    pairing = pair_states(data)
    assert pairing == (("swing",), ("rate",)), "whichever column comes first"
    found = find_mechanism(data, pairing, held=[held] * len(data.inputs))
    assert found.mechanism.title == "a pendulum"
    constants = {name: value if isinstance(value, float) else value[0] for name, value in found.constants.items()}
    true = {"m1": M, "g1": G, "d1": D, "f1": F, "w1": 0.05}
    assert constants.keys() == true.keys(), "terms that the records do not need are left out"
    for name, limit in {"m1": 0.02, "g1": 0.02, "d1": 0.05, "f1": 0.05, "w1": 0.5}.items():
        assert constants[name] == pytest.approx(true[name], rel=limit), name
    terms = slice(found.mechanism.terms)
    off = found.values[terms] - [true[name] for name in found.mechanism.constants[terms]]
    assert np.abs(off / found.errors[terms]).max() < 5, "and errors are as large as they are said to be"


def test_velocities_may_be_differences_of_counts():
    """A spline follows their steps, so that their noise is not what it leaves."""
    data = pendulum(5)
    rates = np.gradient(data.ys[..., 1], STEP, axis=1)
    data = nf.Dataset.from_arrays(
        data.ts, np.stack([rates, data.ys[..., 1]], axis=-1), data.us, states=["rate", "swing"], inputs=["torque"]
    )
    found = find_mechanism(data, pair_states(data), held=[False] * len(data.inputs))
    assert found.mechanism.title == "a pendulum"
    assert [found.constants[name] for name in ("m1", "g1", "d1")] == pytest.approx([M, G, D], rel=0.03)


def test_velocities_are_those_whose_integral_a_position_follows():
    data = pendulum(1)
    noise = np.random.default_rng(0).normal(size=data.ys.shape)
    assert pair_velocities(nf.Dataset.from_arrays(data.ts, noise, states=["a", "b"])) is None
    assert pair_velocities(nf.Dataset.from_arrays(data.ts, data.ys[..., :1], states=["a"])) is None
    slower = data.ys * [0.5, 1.0]
    assert pair_velocities(nf.Dataset.from_arrays(data.ts, slower, states=["rate", "swing"])) is None, "in another unit"


def test_what_is_no_mechanism_is_refused_with_the_fix():
    data = pendulum(2)
    free = nf.Dataset.from_arrays(data.ts, data.ys, states=["rate", "swing"])
    with pytest.raises(ValueError, match="field=mechanical needs forces that change as inputs"):
        pair_states(free)
    with pytest.raises(ValueError, match=r"no half is the rate of the other; name them \(field\.positions"):
        shuffled = np.random.default_rng(0).permuted(data.ys, axis=1)
        pair_states(nf.Dataset.from_arrays(data.ts, shuffled, data.us, states=["rate", "swing"], inputs=["torque"]))
    with pytest.raises(ValueError, match="give both, or neither"):
        pair_states(data, positions=["swing"])
    with pytest.raises(ValueError, match="must name each state once; the states are rate, swing"):
        pair_states(data, ["swing"], ["speed"])
    with pytest.raises(ValueError, match="a trajectory of more than 40 rows"):
        pair_states(data.windows(30, 30), ["swing"], ["rate"])
    two = np.concatenate([data.us, data.us], axis=-1)
    with pytest.raises(ValueError, match="no more inputs than these"):
        pair_states(nf.Dataset.from_arrays(data.ts, data.ys, two, states=["rate", "swing"], inputs=["u1", "u2"]))
    named = nf.Dataset.from_arrays(data.ts, data.ys, data.us, states=["rate (1/s)", "swing"], inputs=["torque"])
    with pytest.raises(ValueError, match="can't have the name 'rate \\(1/s\\)'; rename it, for example to rate"):
        pair_states(named)
    with pytest.raises(ValueError, match=r"pass field=node_fit\.Mechanical to node_fit\.fit"):
        nf.make_model(data, field=nf.Mechanical, key=jax.random.key(0))
    with pytest.raises(ValueError, match="field=mechanical needs measurements of all states"):
        nf.fit(data, field="mechanical", hidden=1, progress=False)


def test_columns_alone_lead_to_equations_of_motion(tmp_path):
    records = pendulum(3, records=4)
    train, validation = records[:3], records[3:]
    fit = nf.fit(train, validation=validation, progress=False)
    assert [attempt.name for attempt in fit.attempts] == ["equations of motion"], "nothing else is tried"
    assert fit.diagnose().kind in ("good", "noise-limited"), fit.diagnose().sentence
    assert fit.constants["g1"] == pytest.approx(G, rel=0.02) and "sin(swing)" in fit.equations["rate"]
    assert str(fit.choices[0]).startswith("field=mechanical: the equations of motion of a pendulum")
    fit.save(tmp_path / "model.eqx")
    again = nf.load(tmp_path / "model.eqx")
    np.testing.assert_allclose(again.predict(validation), fit.model.predict(validation), rtol=1e-12)


def test_other_options_keep_their_own_field():
    data = pendulum(4)
    for changed in ({"field": functools.partial(nf.MLP, width=4)}, {"options": nf.Options(discover=False)}):
        options = {"training": nf.Training(steps=1), **changed}
        fit = nf.fit(data, progress=False, **options)
        assert not any(choice.key == "field" for choice in fit.choices)
