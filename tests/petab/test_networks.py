"""Networks in place of rates that a model lacks: where they act, and that they find a rate."""

import numpy as np
import pytest
from helpers.petab import CHAIN, write_problem

import node_fit
from node_fit.expressions.evaluation import evaluate


def rate(a):
    """The rate at which A turns into B, which saturates."""
    return 1.5 * a / (0.5 + a)


def flow(_, states):
    """The derivatives of A and B, which decays."""
    a, b = states
    return [-rate(a), rate(a) - 0.1 * b]


@pytest.fixture
def files(tmp_path):
    """The model, with another rate, and A and B from three starts as scipy solves them."""
    from scipy.integrate import solve_ivp

    (tmp_path / "model.xml").write_text(CHAIN)
    times, random, rows = np.linspace(0, 6, 13), np.random.default_rng(0), ["id,A0,time,A,B"]
    for start in (1.0, 2.0, 4.0):
        solved = solve_ivp(
            lambda _, y: [-rate(y[0]), rate(y[0]) - 0.1 * y[1]], (0, 6), [start, 0], t_eval=times, rtol=1e-9
        )
        for time, (a, b) in zip(times, solved.y.T + random.normal(scale=0.01, size=(13, 2)), strict=True):
            rows.append(f"from {start},{start},{time},{a},{b}")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def hybrid(files, **given):
    given = {"networks": {"turn": ["A"]}, "observables": {"a": "A", "b": "B"}, "sigma": 0.01, "width": 3, **given}
    text = (files / "data.csv").read_text().replace("time,A,B", "time,a,b").replace("A0", "A")
    (files / "renamed.csv").write_text(text)
    return node_fit.SBML(
        str(files / "model.xml"), str(files / "renamed.csv"), trajectory="id", conditions=["A"], **given
    ).read()


@pytest.mark.long
@pytest.mark.slow
def test_a_rate_is_found(files):
    problem = hybrid(files)
    fit = node_fit.fit_petab(problem, restarts=2)
    assert fit.objective.chi2(fit.x) < 1.3 * len(problem.measurements)
    for a in (0.1, 0.5, 1.0, 2.0, 3.5):
        found = float(evaluate(problem.model.reactions["turn"], {**fit.parameters, "A": a}))
        assert found == pytest.approx(rate(a), abs=0.05)


def test_a_network_that_is_stored_is_zero_and_reads_sizes_from_the_data(files):
    problem = hybrid(files)
    objective = node_fit.objective(problem)
    assert "turn_1_A" in objective.names and "k1" not in objective.names
    simulated = objective.simulate(objective.nominal)
    starts = {"from 1.0": 1.0, "from 2.0": 2.0, "from 4.0": 4.0}
    for each, value in zip(problem.measurements, simulated, strict=True):
        assert value == pytest.approx(starts[each.experiment] if each.observable == "a" else 0.0, abs=1e-9)


def test_a_network_is_a_constant_or_adds_to_a_derivative(tmp_path):
    problem = node_fit.read_petab(write_problem(tmp_path / "decay"))
    constant = node_fit.with_networks(problem, {"k": ["x", "time"]})
    assert "k" in constant.model.rules and "k" not in constant.parameters
    added = node_fit.objective(node_fit.with_networks(problem, {"x": ["x"]}))
    plain = node_fit.objective(problem)
    np.testing.assert_allclose(added.simulate(added.nominal), plain.simulate(plain.nominal))  # It is zero.


@pytest.mark.parametrize(
    ("networks", "reason"),
    [
        ({"turns": ["A"]}, "'turns' is no reaction, constant or state of model.xml; did you mean 'turn'?"),
        ({"turn": ["C"]}, "networks.turn: 'C' is nothing that it can see"),
        ({"turn": ["turn"]}, "networks.turn: 'turn' is nothing that it can see"),
        ({"turn": []}, "networks.turn must name what it sees"),
        ({"k1": ["decay"], "decay": ["k1"]}, "in a circle"),
    ],
)  # fmt: skip
def test_wrong_networks_are_refused_with_a_sentence(networks, reason, files):
    with pytest.raises(ValueError, match=r"[.?]$") as caught:
        hybrid(files, networks=networks, parameters=["k1"])
    assert reason in str(caught.value)
