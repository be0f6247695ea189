"""Systems whose rates are computed together: the error of a step has the rounding of the largest state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.expressions.parsing import EQUATION_DIALECT, parse_text
from node_fit.expressions.tree import Number
from node_fit.petab import simulation, system
from node_fit.petab.simulation import Period, Simulation, Tolerances, first_memory
from node_fit.petab.system import Model, ReactionSystem

RATES = {
    "large": "part*3.1 - large*1.05",
    "part": "large*1.05 - part*3.1",
    "small": "(large*1.05 - part*3.1)*0.7 - 2*small",
}


def end_of_simulation(rounding: float, monkeypatch) -> np.ndarray:
    """The states in equilibrium, where the small one is a difference of large flows."""
    monkeypatch.setattr(system, "MANY_PARTS", 0)
    monkeypatch.setattr(simulation, "ROUNDING_OF_LARGEST", rounding)
    start = {"large": Number(1e10), "part": Number(1.3e10 / 3), "small": Number(0.0)}
    rates = {name: parse_text(text, EQUATION_DIALECT) for name, text in RATES.items()}
    network = ReactionSystem(Model("model", start, rates))
    with jax.enable_x64(True):
        state, constants = network.start({}, {}, 0.0)
        period = Period(jnp.zeros(()), jnp.asarray(50.0), jnp.asarray([50.0]))
        run = Simulation(network, constants, Tolerances(max_steps=600)).run
        return np.asarray(run(period, state, first_memory(network), False)[0])


def test_a_small_state_does_not_hold_up_large_ones(monkeypatch):
    large, part, small = end_of_simulation(4.0, monkeypatch)
    total = 1e10 + 1.3e10 / 3
    assert large == pytest.approx(total * 3.1 / 4.15, rel=1e-9) and part == pytest.approx(total * 1.05 / 4.15, rel=1e-9)
    assert abs(small) < 1e-4, "fifteen digits below the others"


def test_without_their_rounding_no_step_would_be_short_enough(monkeypatch):
    assert np.isnan(end_of_simulation(0.0, monkeypatch)).all()
