"""Gradients by a sweep back over the steps: equal to forward sensitivities, whatever the experiments have in common."""

import numpy as np
import pytest
from helpers.petab import TIME, mathml, quantities, sbml, write_problem

import node_fit
from node_fit.petab import adjoint, system


def fed_while(condition: str) -> str:
    return f"<piecewise><piece><ci>f</ci>{condition}</piece><otherwise><cn>0</cn></otherwise></piecewise>"


# x decays at the rate k/(m + x), and is fed at the rate f until the time s, and again while y is over c.
UPTAKE = "<apply><divide/><apply><times/><ci>k</ci><ci>x</ci></apply><apply><plus/><ci>m</ci><ci>x</ci></apply></apply>"
FEEDS = fed_while(f"<apply><lt/>{TIME}<ci>s</ci></apply>") + fed_while("<apply><gt/><ci>y</ci><ci>c</ci></apply>")
LEVEL = "<apply><divide/><ci>x</ci><ci>m</ci></apply><apply><times/><ci>d</ci><ci>y</ci></apply>"
FED = sbml(
    quantities(x=2.0, y=0.0, k=0.5, m=1.0, f=0.3, s=1.2, c=0.4, d=0.6)
    + f"<listOfRules><rateRule variable='x'>{mathml(f'<apply><minus/><apply><plus/>{FEEDS}</apply>{UPTAKE}</apply>')}"
    f"</rateRule><rateRule variable='y'>{mathml(f'<apply><minus/>{LEVEL}</apply>')}</rateRule></listOfRules>"
)
PARAMETERS = "".join(
    f"{name}\tlog10\t0.01\t10\t{value}\t1\n"
    for name, value in {"k": 0.5, "m": 1.0, "f": 0.3, "s": 1.2, "c": 0.4, "d": 0.6, "x0": 1.43249, "sigma": 0.1}.items()
)
MEASURED = "".join(
    f"{name}\t{condition}\t{time}\t{value}\t\n"
    for condition in ("low", "high")
    for name in ("x", "y")
    for time, value in ((0, 1.9), (0.7, 1.5), (2.0, 0.9), (4.0, 0.4))
)


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    path = write_problem(
        tmp_path_factory.mktemp("fed") / "fed",
        model_xml=FED,
        conditions_tsv="conditionId\tx\nlow\tx0\nhigh\t3\n",
        observables_tsv="observableId\tobservableFormula\tnoiseFormula\nox\tx\tsigma\noy\ty\tsigma + 0.1*y\n",
        parameters_tsv="parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\n" + PARAMETERS,
        measurements_tsv="observableId\tsimulationConditionId\ttime\tmeasurement\tobservableParameters\n"
        + MEASURED.replace("x\t", "ox\t").replace("y\t", "oy\t"),
    )
    return node_fit.objective(node_fit.read_petab(path))


def test_a_sweep_back_gives_the_gradient_of_forward_sensitivities(objective):
    """Through divisions, a jump at a time that is estimated, and one at a level that is."""
    x = objective.nominal + 0.02
    assert objective.is_reversible
    forward = objective.differentiate(x).gradient
    assert np.abs(forward).min() > 1e-3, "each parameter matters"
    np.testing.assert_allclose(objective.gradient(x), forward, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_a_period_of_more_steps_than_are_kept_has_no_gradient(objective, monkeypatch):
    monkeypatch.setattr(adjoint, "MAX_KEPT", 5)
    again = node_fit.objective(objective.problem)
    assert np.isnan(again.gradient(again.nominal)).any()


def test_many_rates_are_computed_together_with_the_same_result(objective, monkeypatch):
    """Rates with two jumps, as if they were many: the same steps, with a Jacobian from few directions."""
    x = objective.nominal + 0.02
    monkeypatch.setattr(system, "MANY_PARTS", 0)
    again = node_fit.objective(objective.problem)
    assert again.system.is_large and not objective.system.is_large
    assert again.log_likelihood(x) == pytest.approx(objective.log_likelihood(x), rel=1e-10)
    np.testing.assert_allclose(again.gradient(x), objective.gradient(x), rtol=1e-7)
    np.testing.assert_allclose(again.differentiate(x).fisher, objective.differentiate(x).fisher, rtol=1e-7)
