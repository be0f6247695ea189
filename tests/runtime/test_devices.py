"""Runs on several devices, here eight simulated ones, give the same numbers as on one device."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.commands import DIRECT, ENVIRONMENT, node_fit, read_summary, spirals, write_table
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.runtime.placement import Placement

pytestmark = pytest.mark.slow

# Prints the losses of all chunks, which are compared in float64 with those of one device to 1e-6.
PROGRAM = """
import numpy as np
import node_fit as nf
from helpers.problems import SMALL, fit_to, rotation
from node_fit.runtime.placement import Placement
from helpers.callbacks import GoOn, Stop

options = {"field": SMALL, "steps": 20, "chunk_steps": 10, "ridge": 0.0, "precision": "x64", "recipe": "direct"}


def losses(**more):
    fit = fit_to(rotation(8), validation=rotation(3), **options, **more)
    return fit.compiles, np.array([(r.train_loss, r.validation_loss) for r in fit.history])

"""
SPREAD = {
    "trajectories": "",
    "trajectories, Levenberg-Marquardt": "optimizer=nf.LevenbergMarquardt()",
    "members with data of their own": "ensemble=nf.Members(8, 'both')",
}


def run(body: str) -> None:
    tests = Path(__file__).parents[1]
    environment = {**ENVIRONMENT, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": f"{tests}:{tests.parent}"}
    code = PROGRAM + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", SPREAD)
def test_eight_devices_give_the_losses_of_one(name):
    run(f"""
    one, alone = losses(device=nf.Devices(count=1), {SPREAD[name]})
    eight, spread = losses(device=nf.Devices(count=8), {SPREAD[name]})
    assert one == eight, (one, eight)
    np.testing.assert_allclose(spread, alone, rtol=1e-6)
    """)


@pytest.mark.long
def test_a_fit_and_its_model_stay_on_a_device_that_is_not_the_first():
    """As on the CPU of a machine with a GPU: arrays of two devices don't go into one program."""
    run("""
    import jax

    asked = jax.devices()[1]
    Placement.devices = property(lambda self: [asked])
    ts = np.linspace(0, 8, 40)
    ys = np.exp(-0.3 * ts[:, None]) * np.stack([np.cos(2 * ts), -np.sin(2 * ts)], axis=1)
    noisy = ys + 0.05 * np.random.default_rng(0).normal(size=ys.shape)
    train = nf.Dataset.from_arrays(ts, noisy, states=("x", "y"))
    fit = nf.fit(train, progress=False)
    assert {leaf.device for leaf in jax.tree.leaves(fit.model) if isinstance(leaf, jax.Array)} == {asked}
    assert any(each.kept for each in fit.attempts) and isinstance(fit.model, nf.Ensemble)
    assert fit.score(train).nrmse < 0.3 and np.isfinite(fit.predict(train)).all()
    assert np.isfinite(fit.model.derivative(noisy)).all()
    field = nf.Known(equations={"x": "-a*x + b*y", "y": "-b*x - a*y"}, constants={"a": 1.0, "b": 1.0})
    known = nf.fit(train, field=field, progress=False)
    assert known.score(train).nrmse < 0.3 and known.confidence().constants
    """)


def test_gradients_of_all_devices_are_added_once():
    """Added up in every step of a solve, they made gradients on two devices fifteen times slower than on one."""
    run("""
    import equinox as eqx, jax, jax.numpy as jnp
    from node_fit.solver.problem import InitialValueProblem

    place = Placement("x32", "cpu", 8)
    ts = np.tile(np.linspace(0, 1, 5), (16, 1))
    field = nf.MLP(2, width=4, depth=1, key=jax.random.key(0))

    def loss(field, ts, y0, between_rows):
        problem = InitialValueProblem(field, ts, y0, ts[..., None][..., :0], ts[:, 0])
        grid = jnp.linspace(0, 1, 4)[None] if between_rows else ts
        return jnp.sum(nf.Solver().solve_held(problem, grid, between_rows=between_rows).ys ** 2)

    for between_rows in (False, True):
        gradient = eqx.filter_jit(eqx.filter_grad(lambda *arguments: loss(*arguments, between_rows)))
        alone = gradient(field, jnp.asarray(ts), jnp.ones((16, 2)))
        spread = place.replicate(field), place.shard(ts), place.shard(np.ones((16, 2)))
        with place.trace_programs():
            program = gradient.lower(*spread).compile()
        for one, eight in zip(jax.tree.leaves(alone), jax.tree.leaves(program(*spread)), strict=True):
            np.testing.assert_allclose(one, eight, rtol=1e-4)
        sums = [line for line in program.compiled.as_text().splitlines() if " all-reduce(" in line]
        assert sums and not any("while" in line for line in sums), sums
    """)


def test_a_run_goes_on_with_another_count():
    run("""
    import tempfile
    folder = tempfile.mkdtemp()
    more = {"optimizer": nf.Adam()}
    _, whole = losses(**more)
    losses(device=nf.Devices(count=8), callbacks=[Stop(folder, 1)], **more)
    rest = losses(device=nf.Devices(count=2), callbacks=[GoOn(folder)], **more)[1]
    np.testing.assert_allclose(rest, whole[1:], rtol=1e-6)
    """)


def test_devices_that_stay_idle_are_told_of():
    run("""
    import logging
    said = []
    logging.getLogger("node_fit").addHandler(type("Hear", (logging.Handler,), {"emit": lambda _, r: said.append(r)})())
    options |= {"field": SMALL, "steps": 1, "recipe": "direct", "ridge": 0.0}
    assert fit_to(rotation(8), device=nf.Devices(count=8), **options).devices == 8 and not said
    assert fit_to(rotation(5), device=nf.Devices(count=8), **options).devices == 5
    (record,) = said
    assert "using 5 of 8 devices" in record.getMessage()
    """)


def test_the_command_makes_its_devices(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, *DIRECT, "device=cpu", "device.count=2", "ensemble.size=2", "hydra.run.dir=run")
    assert ran.code == 0, ran
    assert "2 devices (cpu)" in ran.out
    summary = read_summary(tmp_path / "run")
    assert summary["devices"] == 2 and len(summary["ensemble"]["members"]) == 2


@pytest.mark.parametrize("count", [0, 99])
def test_devices_that_are_not_there_are_refused(count):
    with pytest.raises(ValueError, match=r"device\.count must be from 1 to"):
        fit_to(rotation(), field=SMALL, device=nf.Devices(count=count))


def test_a_length_decides_over_how_many_devices_it_is_spread():
    class Eight(Placement):
        devices = property(lambda self: list(range(self.count)))

    place = Eight("x32", "cpu", 8)
    assert [Eight("x32", "cpu", 8, fewest=64).among(length).count for length in (100, 130, 600, 6400)] == [1, 2, 8, 8]
    assert [place.among(length).count for length in (1, 6, 8, 12, 20, 97, 200)] == [1, 6, 8, 6, 5, 1, 8]
