"""Known equations as SBML: libSBML finds no fault, our reader reads them back, and all functions are the same."""

import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.export.sbml import make_ids
from node_fit.expressions.evaluation import Tape
from node_fit.petab.sbml import read_sbml
from node_fit.runtime.placement import scope

libsbml = pytest.importorskip("libsbml")

# Every operation that SBML has, or that is written out.
RATES = {
    "µ_x": "-piecewise(k, µ_x > 0.5 and not v >= 2, 2*k, µ_x < -1 or v != v, k/3)*µ_x + 1e-3*t",
    "v": "min(µ_x, 0.1*pi) - atan(v) + max(sin(v), -cos(v))/(1 + exp(-v)) - 0.2*sigmoid(v)",
    "w": "sign(v)*sqrt(abs(µ_x)) + 0.3*heaviside(µ_x) - tanh(w)**3 + 0.1*log2(1 + v**2) - log10(2 + w**2) + ln(2)",
}


def model_of(rates, constants):
    ts = np.linspace(0, 0.2, 21)  # No switch acts within it; the rates on their other sides are compared by themselves.
    ys = np.stack([np.linspace(1, 0.2, 21), np.linspace(-0.5, 0.5, 21), np.linspace(0.3, 0.1, 21)], axis=1)
    data = nf.Dataset.from_arrays(ts, ys, states=list(rates))
    field = nf.Known(equations=rates, constants=constants)
    with scope("x64"):
        return nf.make_model(data, field=field, key=jax.random.key(0)), data


def test_all_functions_are_read_back(tmp_path):
    """By libSBML, whose formulas are solved within the export, and by our reader, whose rates are compared here."""
    model, data = model_of(RATES, {"k": 0.7})
    done = nf.export(model, "sbml", tmp_path, data=data)
    assert done.difference.largest < 1e-6
    document = libsbml.readSBMLFromFile(str(tmp_path / "model.xml"))
    document.checkConsistency()
    errors = [document.getError(at) for at in range(document.getNumErrors())]
    assert not [each.getMessage() for each in errors if each.getSeverity() >= libsbml.LIBSBML_SEV_ERROR]
    read = read_sbml(tmp_path / "model.xml")
    states = list(read.rates)
    tape = Tape([read.rates[name] for name in states], ["time", *states, "k"])
    for y in np.random.default_rng(0).normal(size=(20, 3)):
        found = [float(each) for each in tape([0.4, *y, 0.7])]
        with scope("x64"):
            expected = np.asarray(model.vector_field(0.4, y))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    starts = [document.getModel().getParameter(name).getValue() for name in states]
    np.testing.assert_allclose(starts, data.ys[0, 0], rtol=1e-12)


@pytest.mark.parametrize(
    ("rates", "said"), [({"x": "-k*erf(x)", "v": "-v", "w": "-w"}, "the function erf, which SBML lacks")]
)
def test_what_sbml_lacks_is_refused(tmp_path, rates, said):
    model, data = model_of(rates, {"k": 0.7})
    with pytest.raises(ValueError, match=said):
        nf.export(model, "sbml", tmp_path / "out", data=data)
    assert not (tmp_path / "out").exists()


def test_identifiers_are_those_of_sbml_and_none_is_taken_twice():
    assert make_ids(["a b", "a_b", "1st", "time", "x"]) == {
        "a b": "a_b", "a_b": "a_b_", "1st": "_1st", "time": "_time", "x": "x"
    }  # fmt: skip
