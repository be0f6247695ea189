"""The target `fmu`: functional mock-up units of versions 2.0 and 3.0, as C sources with a binary for this platform."""

import ctypes
import io
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as XML

import numpy as np

from ..runtime.serialization import __version__
from .c import c_string, render_c, state_names, templates_with
from .functions import Exported
from .tracing import CannotExport
from .trials import FLAGS, CheckRecord, compiler, difference, record_starts

VERSIONS = ("2.0", "3.0")
IDENTIFIER = "model"
SOURCES = ("model.c", "fmu.c")
# How far the two versions may be apart, as a share of the range.
AGREE = 1e-6
# Names of platforms in version 2.0 and 3.0 of the standard, and of shared libraries.
PLATFORMS = {
    "linux": ("linux64", "{machine}-linux", ".so"),
    "darwin": ("darwin64", "{machine}-darwin", ".dylib"),
    "win32": ("win64", "{machine}-windows", ".dll"),
}
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}


def refusals_of_fmu(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """What a functional mock-up unit can't carry."""
    found = []
    if exported.has_triggers:
        found.append("triggers, at which its states jump")
    if any(each.factor is not None and (each.factor != 1).any() for each in trials):
        found.append("events that set or multiply a state; use c or numpy")
    if exported.one.solver.interpolation == "cubic":
        found.append("inputs on a cubic, of which a unit sees too few rows; use c or numpy")
    if exported.horizon is not None:
        found.append("bands that end at a horizon, since a unit does not know when its record began")
    return found


def render_fmu(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """The units by their names."""
    start = record_starts(exported, trials[:1])[0][1]
    sources = {name: text for name, text in render_c(exported).items() if name != "main.c"}
    return {f"model_fmi{version[0]}.fmu": unit(exported, version, sources, start, trials[0]) for version in VERSIONS}


def unit(exported: Exported, version: str, sources: dict[str, str], start: np.ndarray, trial: CheckRecord) -> bytes:
    """One unit, as the bytes of its archive."""
    one = exported.one
    inputs = trial.inputs[0] if len(one.inputs) else np.zeros(1)
    text = templates_with({"c": c_string}).get_template("fmu.c")
    numbers = lambda values: ", ".join(repr(float(each)) for each in values)  # noqa: E731
    scale = np.tile(np.asarray(one.system.scaler.state_scale, np.float64), len(exported.members))
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    facts = {
        "start": numbers(start),
        "nominal": numbers(scale),
        "first_inputs": numbers(inputs),
        "doses": has_doses(trial),
    }
    whole = sources | {"fmu.c": text.render(facts, version_of_fmi=version)}
    folder, name = platform_names(version)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("modelDescription.xml", describe_unit(exported, version, start, trial))
        for each, content in whole.items():
            zipped.writestr(f"sources/{each}", content)
        if version == "3.0":
            zipped.writestr("sources/buildDescription.xml", build_description())
        zipped.writestr(f"binaries/{folder}/{name}", binary(whole, name))
    return archive.getvalue()


def platform_names(version: str) -> tuple[str, str]:
    """The folder and the name of the binary for this platform."""
    if sys.platform not in PLATFORMS:
        raise CannotExport(f"an FMU has no binary for {sys.platform}; export on Linux, macOS or Windows, or use c.")
    second, third, suffix = PLATFORMS[sys.platform]
    machine = platform.machine().lower()
    third = third.format(machine=MACHINES.get(machine, machine))
    return (second if version == "2.0" else third), IDENTIFIER + suffix


def binary(sources: dict[str, str], name: str) -> bytes:
    """The shared library of some sources."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as place:
        for each, content in sources.items():
            (Path(place) / each).write_text(content)
        words = [compiler(), *FLAGS, "-fPIC", "-shared", *SOURCES, "-lm", "-o", name]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the compiler failed: {done.stderr[:2000]}")
        return (Path(place) / name).read_bytes()


def describe_unit(exported: Exported, version: str, start: np.ndarray, trial: CheckRecord) -> bytes:
    """The model description, in which ElementTree escapes all names."""
    second = version == "2.0"
    root = XML.Element("fmiModelDescription", fmiVersion=version, modelName="model")
    root.set("generationTool", f"node_fit {__version__}")
    root.set("guid" if second else "instantiationToken", exported.digest)
    root.set("variableNamingConvention", "flat")
    # Whether inputs may change within a step, which node_fit's linear interpolation means.
    linear = exported.is_driven and exported.one.solver.interpolation == "linear"
    abilities = {"canGetAndSetFMUstate" if second else "canGetAndSetFMUState": "true"}
    abilities |= {"canSerializeFMUstate" if second else "canSerializeFMUState": "true"}
    abilities |= {"providesDirectionalDerivative" + ("" if second else "s"): "true"}
    XML.SubElement(root, "ModelExchange", {"modelIdentifier": IDENTIFIER, **abilities})
    step = {"canHandleVariableCommunicationStepSize": "true"}
    step |= {"canInterpolateInputs": str(linear).lower()} if second else {}
    together = XML.SubElement(root, "CoSimulation", {"modelIdentifier": IDENTIFIER, **abilities, **step})
    if second:
        for place in (root.find("ModelExchange"), together):
            assert place is not None
            files = XML.SubElement(place, "SourceFiles")
            for name in SOURCES:
                XML.SubElement(files, "File", name=name)
    variables = variables_of(exported, start, trial)
    units = sorted({each["unit"] for each in variables if "unit" in each})
    if units:
        definitions = XML.SubElement(root, "UnitDefinitions")
        for name in units:
            XML.SubElement(definitions, "Unit", name=name)
    listed = XML.SubElement(root, "ModelVariables")
    for each in variables:
        add_variable(listed, dict(each), second)
    structure(root, variables, second)
    XML.indent(root)
    return XML.tostring(root, encoding="utf-8", xml_declaration=True)


def variables_of(exported: Exported, start: np.ndarray, trial: CheckRecord) -> list[dict[str, Any]]:
    """The variables: their attributes, with numbers as text; `derivative` is the state's place among them, from 1."""
    one, states = exported.one, state_names(exported)
    units = exported.units
    with_unit = lambda name: {"unit": units[name]} if units.get(name) else {}  # noqa: E731
    variability = "discrete" if one.solver.interpolation == "hold" else "continuous"
    predicted = exported.columns
    # What is predicted has the names of the columns; states get others where they would have the same.
    inputs = trial.inputs[0]
    own_names = [name if name not in predicted else f"state {name}" for name in states]
    doses = [f"add {name}" for name in states] if has_doses(trial) else []
    derived = [f"der({name})" for name in own_names]
    taken = unique_names([*predicted, *one.inputs, "time", *own_names, *derived, *doses])
    outputs, others = taken[: len(predicted)], taken[len(predicted) : len(taken) - len(doses)]
    added = taken[len(taken) - len(doses) :]
    taken = [others[len(one.inputs)], *others[len(one.inputs) + 1 :], *others[: len(one.inputs)], *outputs]
    found: list[dict[str, Any]] = [{"name": taken[0], "causality": "independent", "variability": "continuous"}]
    for at, name in enumerate(states):
        own = {"causality": "local", **with_unit(name)}
        place = {"name": taken[1 + at], "variability": "continuous", "initial": "exact"}
        found.append({**place, "start": start[at], **own})
    for at in range(len(states)):
        place = {"name": taken[1 + len(states) + at], "variability": "continuous", "initial": "calculated"}
        found.append({**place, "causality": "local", "derivative": at + 2})
    for at, name in enumerate(one.inputs):
        place = {"name": taken[1 + 2 * len(states) + at], "variability": variability, "start": inputs[at]}
        found.append({**place, "causality": "input", **with_unit(name)})
    for at in range(len(predicted)):
        place = {"name": taken[1 + 2 * len(states) + len(one.inputs) + at], "variability": "continuous"}
        base = one.states[at % len(one.states)]
        found.append({**place, "causality": "output", "initial": "calculated", **with_unit(base)})
    for at in range(len(doses)):
        place = {"name": added[at], "causality": "input", "variability": "discrete", "start": 0.0}
        found.append({**place, **with_unit(states[at])})
    for reference, each in enumerate(found):
        each["valueReference"] = reference
    return found


def has_doses(trial: CheckRecord) -> bool:
    """Whether something is added to states at known times."""
    return trial.shift is not None


def unique_names(names: Sequence[str]) -> list[str]:
    """The names on one line each, with a number behind one that was there before."""
    found: list[str] = []
    for name in names:
        plain = "".join(c if c.isprintable() else "?" for c in name) or "?"
        number, own = 1, plain
        while own in found:
            number, own = number + 1, f"{plain} ({number + 1})"
        found.append(own)
    return found


def add_variable(listed: XML.Element, each: dict[str, Any], second: bool) -> None:
    """Writes a variable."""
    derivative, unit, start = each.pop("derivative", None), each.pop("unit", None), each.pop("start", None)
    kind = {} if unit is None else {"unit": unit}
    kind |= {} if start is None else {"start": repr(float(start))}
    shared = {key: str(value) for key, value in each.items()}
    if second:
        variable = XML.SubElement(listed, "ScalarVariable", shared)
        XML.SubElement(variable, "Real", kind | ({} if derivative is None else {"derivative": str(derivative)}))
        return
    kind |= {} if derivative is None else {"derivative": str(derivative - 1)}
    XML.SubElement(listed, "Float64", shared | kind)


def structure(root: XML.Element, variables: Sequence[dict[str, Any]], second: bool) -> None:
    """Writes which variables are outputs, and which derivatives of states."""
    found = XML.SubElement(root, "ModelStructure")
    outputs = [each for each in variables if each["causality"] == "output"]
    rates = [each for each in variables if "derivative" in each]
    unknown = [each for each in outputs if each["initial"] == "calculated"] + rates
    if second:
        for name, group in (("Outputs", outputs), ("Derivatives", rates), ("InitialUnknowns", unknown)):
            if group:
                place = XML.SubElement(found, name)
                for each in group:
                    XML.SubElement(place, "Unknown", index=str(each["valueReference"] + 1))
        return
    for name, group in (("Output", outputs), ("ContinuousStateDerivative", rates), ("InitialUnknown", unknown)):
        for each in group:
            XML.SubElement(found, name, valueReference=str(each["valueReference"]))


def build_description() -> bytes:
    """How to compile the sources, as version 3.0 says it."""
    root = XML.Element("fmiBuildDescription", fmiVersion="3.0")
    configuration = XML.SubElement(root, "BuildConfiguration", modelIdentifier=IDENTIFIER)
    files = XML.SubElement(configuration, "SourceFileSet", language="C99")
    for name in SOURCES:
        XML.SubElement(files, "SourceFile", name=name)
    return XML.tostring(root, encoding="utf-8", xml_declaration=True)


def run_fmu(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """What the unit of version 2.0 predicts in Co-Simulation, which that of 3.0 has to agree with in Model Exchange.

    FMPy loads them and checks their descriptions against the standard.

    **Raises:** `CannotExport` if they don't agree.
    """
    try:
        import fmpy
    except ImportError:
        raise CannotExport('an FMU is checked by FMPy; install it: pip install "node_fit[export]".') from None
    begun = record_starts(exported, trials)
    together, alone = [], []
    for trial, start in zip(trials, begun, strict=True):
        together.append(step_unit(fmpy, folder / "model_fmi2.fmu", exported, trial, start))
        alone.append(integrate_unit(fmpy, folder / "model_fmi3.fmu", exported, trial, start))
    far = difference(alone, together, exported.columns)
    if not far.largest <= AGREE:
        raise CannotExport(
            f"the units of versions 2.0 and 3.0 differ by {far.largest:.2g} of the range of {far.column!r}."
        )
    return together


class Loaded(NamedTuple):
    """A unit that FMPy has loaded; value references of its states, inputs, and of what it predicts."""

    own: Any
    states: list[int]
    inputs: list[int]
    columns: list[int]


def load_unit(fmpy: Any, path: Path, exported: Exported, kind: str) -> Loaded:
    """Loads a unit.

    **Arguments:** `kind`: `CoSimulation` or `ModelExchange`.
    """
    from fmpy.simulation import instantiate_fmu

    described = fmpy.read_model_description(str(path), validate=True)
    own = instantiate_fmu(fmpy.extract(str(path)), described, fmi_type=kind)
    states, inputs = len(state_names(exported)), len(exported.one.inputs)
    ends = np.cumsum([1, states, states, inputs, len(exported.columns)]).tolist()
    return Loaded(own, list(range(1, ends[1])), list(range(ends[2], ends[3])), list(range(ends[3], ends[4])))


def step_unit(
    fmpy: Any, path: Path, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """What a unit of version 2.0 predicts in Co-Simulation, stepped from row to row."""
    own, states, inputs, columns = load_unit(fmpy, path, exported, "CoSimulation")
    at, first = start
    own.setupExperiment(startTime=trial.t[at])
    own.enterInitializationMode()
    own.setReal(states, list(first))
    own.exitInitializationMode()
    rows = np.full((len(trial.t), len(columns)), np.nan)
    for row in range(at, len(trial.t)):
        rows[row] = own.getReal(columns)
        if row + 1 == len(trial.t):
            break
        length = trial.t[row + 1] - trial.t[row]
        if inputs:
            own.setReal(inputs, list(trial.inputs[row]))
        if trial.shift is not None:
            own.setReal([columns[-1] + 1 + at for at in range(len(states))], list(trial.shift[row]))
        if inputs and exported.one.solver.interpolation == "linear":
            slopes = (trial.inputs[row + 1] - trial.inputs[row]) / length
            own.setRealInputDerivatives(inputs, [1] * len(inputs), list(slopes))
        own.doStep(trial.t[row], length)
    own.terminate()
    own.freeInstance()
    return rows


def dosed(own: Any, states: Sequence[int], columns: Sequence[int], doses: np.ndarray) -> np.ndarray:
    """The states after an event in which doses are given."""
    own.enterEventMode()
    own.setFloat64([columns[-1] + 1 + at for at in range(len(states))], list(doses))
    own.updateDiscreteStates()
    own.enterContinuousTimeMode()
    return np.array(own.getFloat64(states))


def integrate_unit(
    fmpy: Any, path: Path, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """What a unit of version 3.0 predicts in Model Exchange, with a solver of SciPy between rows."""
    from scipy.integrate import solve_ivp

    own, states, inputs, columns = load_unit(fmpy, path, exported, "ModelExchange")
    at, y = start
    own.enterInitializationMode(startTime=trial.t[at])
    own.setFloat64(states, list(y))
    own.exitInitializationMode()
    own.enterContinuousTimeMode()
    hold, count = exported.one.solver.interpolation == "hold", len(states)
    rates, place = (ctypes.c_double * count)(), (ctypes.c_double * count)()
    method = "Radau" if exported.steps.method == "radau5" else "DOP853"
    rows = np.full((len(trial.t), len(columns)), np.nan)

    def place_at(t: float, y: np.ndarray, row: int) -> None:
        own.setTime(t)
        place[:] = y.tolist()
        own.setContinuousStates(place, count)
        if inputs:
            share = 0.0 if hold else (t - trial.t[row]) / (trial.t[row + 1] - trial.t[row])
            own.setFloat64(inputs, list(trial.inputs[row] + share * (trial.inputs[row + 1] - trial.inputs[row])))

    def field(t: float, y: np.ndarray, row: int) -> list[float]:
        place_at(t, y, row)
        own.getContinuousStateDerivatives(rates, count)
        return list(rates)

    for row in range(at, len(trial.t)):
        place_at(trial.t[row], y, min(row, len(trial.t) - 2))
        rows[row] = own.getFloat64(columns)
        if row + 1 < len(trial.t):
            y = y if trial.shift is None else dosed(own, states, columns, trial.shift[row])
            ends = trial.t[row : row + 2]
            size = 1e-13 * np.maximum(np.abs(y), 1e-6)
            y = solve_ivp(field, ends, y, method, ends[1:], args=(row,), rtol=1e-9, atol=size).y[:, -1]
    own.terminate()
    own.freeInstance()
    return rows
