"""Functional mock-up units: what they predict, their descriptions, triggers, and derivatives; needs FMPy."""

import dataclasses

import numpy as np
import pytest
from helpers.exported import HOSTILE, SCALED, bounce, network, records

import node_fit as nf
from node_fit.export.trials import in_double

fmpy = pytest.importorskip("fmpy")
KINDS = ("ModelExchange", "CoSimulation")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """A network with a hidden state and held inputs, and the folder of its units."""
    model, data = network(hidden=1, start=nf.Encoder, scaling=SCALED, solver=nf.Solver(inputs="hold"))
    folder = tmp_path_factory.mktemp("fmu")
    return in_double(model), data, folder, nf.export(in_double(model), "fmu", folder, data=data)


def unit(folder, version, kind):
    """A unit at the start."""
    from fmpy.simulation import instantiate_fmu

    path = str(folder / f"model_fmi{version}.fmu")
    found = instantiate_fmu(fmpy.extract(path), fmpy.read_model_description(path), fmi_type=kind)
    if version == 2:
        found.setupExperiment()
        found.enterInitializationMode()
    else:
        found.enterInitializationMode(startTime=0.0)
    found.exitInitializationMode()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [2, 3])
def test_units_predict_what_the_model_does(encoded, version, kind):
    model, data, folder, done = encoded
    assert done.difference.largest < 1e-6
    ts, expected = data.ts[0], np.asarray(model.predict(data.select([0])))[0]
    found = fmpy.simulate_fmu(
        str(folder / f"model_fmi{version}.fmu"),
        fmi_type=kind,
        start_time=ts[0],
        stop_time=ts[-1],
        output_interval=ts[1] - ts[0],
        relative_tolerance=1e-9,
        record_events=False,
        input=np.array([(t, *u) for t, u in zip(ts, data.us[0], strict=True)], dtype=[("time", float), ("f", float)]),
        output=["x", "v"],
    )
    np.testing.assert_allclose(np.stack([found["x"], found["v"]], -1), expected, atol=1e-6)


@pytest.mark.slow
def test_a_unit_starts_at_its_parameters(encoded):
    model, data, folder, _ = encoded
    path, start = str(folder / "model_fmi2.fmu"), np.asarray(model.predict(data.select([0])))[0, 0]
    given = {v.name: v.start for v in fmpy.read_model_description(path).modelVariables if v.name.startswith("state ")}
    assert list(given) == ["state x", "state v", "state hidden0"]
    np.testing.assert_allclose([float(each) for each in given.values()][:2], start, rtol=1e-6)
    found = fmpy.simulate_fmu(path, start_time=2.0, stop_time=2.1, start_values={"state x": 2.5}, output=["x"])
    assert found["x"][0] == pytest.approx(2.5)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_a_unit_fulfils_the_standard(encoded, version):
    from fmpy.validation import validate_fmu

    _, _, folder, _ = encoded
    assert validate_fmu(str(folder / f"model_fmi{version}.fmu")) == []
    described = fmpy.read_model_description(str(folder / f"model_fmi{version}.fmu"), validate=True)
    assert {v.name: v.unit for v in described.modelVariables if v.causality == "output"} == {"x": "m", "v": None}
    assert described.modelExchange is not None and described.coSimulation is not None


@pytest.mark.slow
def test_derivatives_of_a_unit_are_those_of_what_it_computes(encoded):
    _, _, folder, _ = encoded
    for version in (2, 3):
        own = unit(folder, version, "ModelExchange")
        get, set_ = (own.getReal, own.setReal) if version == 2 else (own.getFloat64, own.setFloat64)
        unknown, known = [4, 5, 6, 8, 9], [1, 2, 3, 7]
        before, at = np.array(get(known)), np.array(get(unknown))
        for k, each in enumerate(known):
            exact = own.getDirectionalDerivative([4, 5, 6], [each], [1.0])
            both = np.array(own.getDirectionalDerivative(unknown, [each], [1.0]))
            set_([each], [before[k] + 1e-5])
            np.testing.assert_allclose(both, (np.array(get(unknown)) - at) / 1e-5, atol=1e-4)
            np.testing.assert_allclose(both[:3], exact, atol=1e-6)
            set_([each], [before[k]])


@pytest.mark.slow
def test_a_state_of_a_unit_is_kept_and_restored(encoded):
    _, _, folder, _ = encoded
    own = unit(folder, 2, "CoSimulation")
    kept = own.getFMUstate()
    own.doStep(0.0, 0.3)
    after = own.getReal([1, 2, 3])
    written = own.serializeFMUstate(kept)
    own.setFMUstate(own.deSerializeFMUstate(written))
    own.doStep(0.0, 0.3)
    assert own.getReal([1, 2, 3]) == after
    own.reset()
    with pytest.raises(Exception, match="fmi2GetReal failed"):
        own.getReal([99])


@pytest.mark.slow
def test_triggers_and_events_act_in_a_unit(tmp_path):
    """A solver that locates zeros (CVODE, in Model Exchange) and steps of the unit itself see the same bounces."""
    model, data = bounce()
    done = nf.export(in_double(model), "fmu", tmp_path, data=data)
    assert done.difference.largest < 1e-6
    assert done.steps.between(0.1) == 1
    free = dataclasses.replace(data, events=None)
    expected = np.asarray(in_double(model).predict(free))[0]
    for version in (2, 3):
        for kind in KINDS:
            found = fmpy.simulate_fmu(
                str(tmp_path / f"model_fmi{version}.fmu"),
                fmi_type=kind,
                stop_time=2.0,
                output_interval=0.1,
                relative_tolerance=1e-9,
                record_events=False,
                output=["h", "v"],
            )
            np.testing.assert_allclose(found["h"], expected[:, 0], atol=1e-6)


def test_hostile_names_in_a_description(tmp_path):
    data = records(states=list(HOSTILE[:2]), inputs=[HOSTILE[2]], units={HOSTILE[0]: '"/><x>'})
    nf.export(in_double(network(data)[0]), "fmu", tmp_path, data=data)
    for version in "23":
        described = fmpy.read_model_description(str(tmp_path / f"model_fmi{version}.fmu"), validate=True)
        assert HOSTILE[0] in {variable.name for variable in described.modelVariables}


def test_a_unit_has_lines_between_rows_where_the_fit_has_cubics(tmp_path):
    cubic, data = network(solver=nf.Solver(inputs="cubic"))
    done = nf.export(in_double(cubic), "fmu", tmp_path, data=data)
    assert "the fit has them on a cubic" in str(done)
    assert "on a line from row to row (on a cubic in node_fit" in (tmp_path / "README.md").read_text()
    assert done.difference.largest <= done.tolerance
    lines = nf.export(in_double(network(solver=nf.Solver(inputs="linear"))[0]), "fmu", tmp_path / "lines", data=data)
    assert "cubic" not in str(lines)
