"""The target `fmu`: functional mock-up units of versions 2.0 and 3.0, as C sources with a binary for this platform."""

import ctypes
import functools
import io
import itertools
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast
from xml.etree import ElementTree as XML

import numpy as np

from ..runtime.serialization import __version__
from .c import c_string, render_c, state_names, templates_with
from .functions import Exported
from .tracing import CannotExport
from .trials import FLAGS, CheckRecord, compiler, difference, record_starts

if TYPE_CHECKING:
    from fmpy.fmi2 import FMU2Slave
    from fmpy.fmi3 import FMU3Model
    from fmpy.model_description import ModelDescription

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
# Functions of the interface that only change its mode, for which there is nothing to do.
SHARED_MODES = ("ExitInitializationMode", "Terminate", "EnterEventMode", "EnterContinuousTimeMode")
CONFIGURATION_MODES = ("EnterConfigurationMode", "ExitConfigurationMode")
MODE_CHANGES = {
    "2.0": (*SHARED_MODES, "EnterInitializationMode", "CancelStep"),
    "3.0": (*SHARED_MODES, *CONFIGURATION_MODES, "EnterStepMode", "EvaluateDiscreteStates"),
}


@dataclass(frozen=True)
class Layout:
    """The value references of a unit's variables; 0 is the time.

    - `states`, `rates`, `inputs`, `columns`: states, their derivatives, inputs, and what is predicted.
    - `factors`, `shifts`: what states are multiplied with at an event, and what is then added; empty without events.
    - `levels`: of the triggers of all members.
    """

    states: list[int]
    rates: list[int]
    inputs: list[int]
    columns: list[int]
    factors: list[int]
    shifts: list[int]
    levels: list[int]

    @classmethod
    def of(cls, exported: Exported, trials: Sequence[CheckRecord]) -> "Layout":
        """That of a model; its records say whether there are events at known times."""
        states = len(state_names(exported))
        jumps = states if any(trial.shift is not None for trial in trials) else 0
        sizes = [states, states, len(exported.one.inputs), len(exported.columns), jumps, jumps]
        levels = len(exported.members) * len(getattr(exported.one.field, "triggers", ()))
        ends = np.cumsum([1, *sizes, levels]).tolist()
        return cls(*(list(range(begin, end)) for begin, end in pairwise(ends)))


@dataclass(frozen=True)
class Variable:
    """A variable of a unit, as both versions of the standard describe it.

    - `derivative`: the reference of the state whose derivative it is.
    """

    reference: int
    name: str
    causality: str
    variability: str = "continuous"
    initial: str | None = None
    start: float | None = None
    unit: str | None = None
    derivative: int | None = None


def refusals_of_fmu(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """What a functional mock-up unit can't carry."""
    found: list[str] = []
    if exported.horizon is not None:
        found.append("bands that end at a horizon, since a unit does not know when its record began")
    return found


def render_fmu(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """The units by their names."""
    start = record_starts(exported, trials[:1])[0][1]
    layout = Layout.of(exported, trials)
    variables = variables_of(exported, layout, start, trials[0].inputs[0])
    sources = {name: text for name, text in render_c(exported).items() if name != "main.c"}

    def numbers(values: Iterable[float]) -> str:
        return ", ".join(repr(float(each)) for each in values)

    scale = np.tile(np.asarray(exported.one.system.scaler.state_scale, np.float64), len(exported.members))
    facts = {
        "start": numbers(start),
        "nominal": numbers(np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)),
        "first_inputs": numbers(trials[0].inputs[0] if layout.inputs else [0.0]),
        "jumps": bool(layout.shifts),
        "triggers": bool(layout.levels),
    }
    described = {version: describe_unit(exported, version, layout, variables) for version in VERSIONS}
    return {f"model_fmi{each[0]}.fmu": archive_unit(each, sources, facts, described[each]) for each in VERSIONS}


def archive_unit(version: str, sources: dict[str, str], facts: dict[str, str | bool], description: bytes) -> bytes:
    """One unit, as the bytes of its archive.

    **Arguments:** `sources`: of the model. `facts`: what the template of the interface says of it.
    """
    template = templates_with({"c": c_string}).get_template("fmu.c")
    whole = sources | {"fmu.c": template.render(facts, version_of_fmi=version, quiet=MODE_CHANGES[version])}
    folder, name = platform_names(version)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("modelDescription.xml", description)
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


def describe_unit(exported: Exported, version: str, layout: Layout, variables: Sequence[Variable]) -> bytes:
    """The model description, in which ElementTree escapes all names."""
    second = version == "2.0"
    root = XML.Element("fmiModelDescription", fmiVersion=version, modelName="model")
    root.set("generationTool", f"node_fit {__version__}")
    root.set("guid" if second else "instantiationToken", exported.digest)
    root.set("variableNamingConvention", "flat")
    if second and layout.levels:
        root.set("numberOfEventIndicators", str(len(layout.levels)))
    # Whether inputs may change within a step, which node_fit's linear interpolation means.
    linear = exported.is_driven and exported.one.solver.interpolation == "linear"
    abilities = {"canGetAndSetFMUstate" if second else "canGetAndSetFMUState": "true"}
    abilities |= {"canSerializeFMUstate" if second else "canSerializeFMUState": "true"}
    abilities |= {"providesDirectionalDerivative" + ("" if second else "s"): "true"}
    # Triggers are armed as the solver's steps are completed; the two versions have different defaults.
    called = "completedIntegratorStepNotNeeded" if second else "needsCompletedIntegratorStep"
    exchange = abilities | {called: str(bool(layout.levels) != second).lower()}
    alone = XML.SubElement(root, "ModelExchange", {"modelIdentifier": IDENTIFIER, **exchange})
    step = {"canHandleVariableCommunicationStepSize": "true"}
    step |= {"canInterpolateInputs": str(linear).lower()} if second else {}
    together = XML.SubElement(root, "CoSimulation", {"modelIdentifier": IDENTIFIER, **abilities, **step})
    for place in (alone, together) if second else ():
        files = XML.SubElement(place, "SourceFiles")
        for name in SOURCES:
            XML.SubElement(files, "File", name=name)
    units = sorted({each.unit for each in variables if each.unit})
    if units:
        definitions = XML.SubElement(root, "UnitDefinitions")
        for name in units:
            XML.SubElement(definitions, "Unit", name=name)
    listed = XML.SubElement(root, "ModelVariables")
    for each in variables:
        add_variable(listed, each, second)
    add_structure(root, layout, second)
    XML.indent(root)
    return XML.tostring(root, encoding="utf-8", xml_declaration=True)


def variables_of(exported: Exported, layout: Layout, start: np.ndarray, inputs: np.ndarray) -> list[Variable]:
    """The variables of a unit, in the order of their references.

    **Arguments:** `start`, `inputs`: values at the start, shapes `(state,)` and `(input,)`.
    """
    one, states, columns = exported.one, state_names(exported), exported.columns
    # What is predicted has the names of the columns.
    own = [f"state {name}" for name in states]
    jumping = states if layout.shifts else ()
    wished = [*columns, *one.inputs, "time", *own, *(f"der({name})" for name in own)]
    wished += [*(f"multiply {name}" for name in jumping), *(f"add {name}" for name in jumping)]
    wished += [f"level of trigger {which + 1}" for which in range(len(layout.levels))]
    groups = [layout.columns, layout.inputs, [0], layout.states, layout.rates]
    groups += [layout.factors, layout.shifts, layout.levels]
    names = dict(zip(itertools.chain(*groups), unique_names(wished), strict=True))

    def unit_of(name: str) -> str | None:
        return exported.units.get(name) or None

    found = [Variable(0, names[0], "independent")]
    for at, name in zip(layout.states, states, strict=True):
        found.append(Variable(at, names[at], "local", initial="exact", start=start[at - 1], unit=unit_of(name)))
    for at, state in zip(layout.rates, layout.states, strict=True):
        found.append(Variable(at, names[at], "local", initial="calculated", derivative=state))
    variability = "discrete" if one.solver.interpolation == "hold" else "continuous"
    for at, name, value in zip(layout.inputs, one.inputs, inputs, strict=True):
        found.append(Variable(at, names[at], "input", variability, start=value, unit=unit_of(name)))
    for at, name in zip(layout.columns, itertools.cycle(one.states)):  # of bands too
        found.append(Variable(at, names[at], "output", initial="calculated", unit=unit_of(name)))
    found += [Variable(at, names[at], "input", "discrete", start=1.0) for at in layout.factors]
    for at, name in zip(layout.shifts, jumping, strict=True):
        found.append(Variable(at, names[at], "input", "discrete", start=0.0, unit=unit_of(name)))
    return found + [Variable(at, names[at], "local", initial="calculated") for at in layout.levels]


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


def add_variable(listed: XML.Element, each: Variable, second: bool) -> None:
    """Writes a variable."""
    shared = {"name": each.name, "valueReference": str(each.reference), "causality": each.causality}
    shared |= {"variability": each.variability} | ({} if each.initial is None else {"initial": each.initial})
    kind = {} if each.unit is None else {"unit": each.unit}
    kind |= {} if each.start is None else {"start": repr(float(each.start))}
    # Version 2.0 counts variables from 1.
    kind |= {} if each.derivative is None else {"derivative": str(each.derivative + second)}
    if second:
        XML.SubElement(XML.SubElement(listed, "ScalarVariable", shared), "Real", kind)
    else:
        XML.SubElement(listed, "Float64", shared | kind)


def add_structure(root: XML.Element, layout: Layout, second: bool) -> None:
    """Writes which variables are outputs, which derivatives of states, and which levels of triggers."""
    found = XML.SubElement(root, "ModelStructure")
    outputs, rates = layout.columns, layout.rates
    if second:
        for name, group in (("Outputs", outputs), ("Derivatives", rates), ("InitialUnknowns", sorted(outputs + rates))):
            place = XML.SubElement(found, name)
            for each in group:
                XML.SubElement(place, "Unknown", index=str(each + 1))
        return
    groups = {"Output": outputs, "ContinuousStateDerivative": rates, "InitialUnknown": outputs + rates}
    for name, group in (groups | {"EventIndicator": layout.levels}).items():
        for each in group:
            XML.SubElement(found, name, valueReference=str(each))


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
    begun, layout = record_starts(exported, trials), Layout.of(exported, trials)
    together: list[np.ndarray] = []
    alone: list[np.ndarray] = []
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as place:
        second, third = (unpack_fmu(folder / f"model_fmi{version[0]}.fmu", Path(place)) for version in VERSIONS)
        for trial, start in zip(trials, begun, strict=True):
            together.append(step_unit(second, layout, exported, trial, start))
            alone.append(integrate_unit(third, layout, exported, trial, start))
    far = difference(alone, together, exported.columns)
    if not far.largest <= AGREE:
        raise CannotExport(
            f"the units of versions 2.0 and 3.0 differ by {far.largest:.2g} of the range of {far.column!r}."
        )
    return together


class Unpacked(NamedTuple):
    """A unit's description, which FMPy has checked, and the folder of its files."""

    described: "ModelDescription"
    folder: str


def unpack_fmu(path: Path, place: Path) -> Unpacked:
    """Reads a unit, and unpacks it below a folder."""
    import fmpy

    described = fmpy.read_model_description(str(path), validate=True)
    return Unpacked(described, str(fmpy.extract(str(path), str(place / path.stem))))


def step_unit(
    unit: Unpacked, layout: Layout, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """What a unit of version 2.0 predicts in Co-Simulation, stepped from row to row."""
    from fmpy.simulation import instantiate_fmu

    own = cast("FMU2Slave", instantiate_fmu(unit.folder, unit.described, fmi_type="CoSimulation"))
    at, first = start
    own.setupExperiment(startTime=trial.t[at])
    own.enterInitializationMode()
    own.setReal(layout.states, list(first))
    own.exitInitializationMode()
    rows = np.full((len(trial.t), len(layout.columns)), np.nan)
    for row in range(at, len(trial.t)):
        rows[row] = own.getReal(layout.columns)
        if row + 1 == len(trial.t):
            break
        length = trial.t[row + 1] - trial.t[row]
        if layout.inputs:
            own.setReal(layout.inputs, list(trial.inputs[row]))
        if trial.factor is not None and trial.shift is not None:
            own.setReal([*layout.factors, *layout.shifts], [*trial.factor[row], *trial.shift[row]])
        if layout.inputs and exported.one.solver.interpolation == "linear":
            slopes = (trial.inputs[row + 1] - trial.inputs[row]) / length
            own.setRealInputDerivatives(layout.inputs, [1] * len(slopes), list(slopes))
        own.doStep(trial.t[row], length)
    own.terminate()
    own.freeInstance()
    return rows


# The share of the highest level, as in the unit, below which a level is zero.
AT_ZERO = 1e-9


class Exchange:
    """A unit of version 3.0 in Model Exchange, between two rows of a record after the other.

    **Arguments:** `hold`: whether inputs stay as they are between two rows.
    """

    def __init__(self, unit: Unpacked, layout: Layout, trial: CheckRecord, hold: bool):
        from fmpy.simulation import instantiate_fmu

        self.own = cast("FMU3Model", instantiate_fmu(unit.folder, unit.described, fmi_type="ModelExchange"))
        self.layout, self.trial, self.hold, self.row = layout, trial, hold, 0
        self.rates, self.place = ((ctypes.c_double * len(layout.states))() for _ in range(2))
        self.indicators = (ctypes.c_double * len(layout.levels))()
        # The highest that each level has been, and when the solver last began.
        self.highest, self.begun = [0.0] * len(layout.levels), -np.inf

    def begin(self, row: int, y: np.ndarray) -> None:
        """Starts at the states of a row."""
        self.own.enterInitializationMode(startTime=self.trial.t[row])
        self.own.setFloat64(self.layout.states, list(y))
        self.own.exitInitializationMode()
        self.own.updateDiscreteStates()
        self.own.enterContinuousTimeMode()

    def move_to(self, t: float, y: np.ndarray) -> None:
        """Sets time, states and inputs."""
        own, trial, row = self.own, self.trial, self.row
        own.setTime(t)
        self.place[:] = y.tolist()
        own.setContinuousStates(self.place, len(self.place))
        if self.layout.inputs:
            share = 0.0 if self.hold else (t - trial.t[row]) / (trial.t[row + 1] - trial.t[row])
            own.setFloat64(
                self.layout.inputs, list(trial.inputs[row] + share * np.diff(trial.inputs[row : row + 2], axis=0)[0])
            )

    def field(self, t: float, y: np.ndarray) -> list[float]:
        """The derivatives of the states."""
        self.move_to(t, y)
        self.own.getContinuousStateDerivatives(self.rates, len(self.rates))
        return list(self.rates)

    def indicator(self, which: int, t: float, y: np.ndarray) -> float:
        """The level of a trigger; below zero at the beginning of a solve if it is zero there, where it has acted."""
        self.move_to(t, y)
        self.own.getEventIndicators(self.indicators, len(self.indicators))
        level = self.indicators[which]
        self.highest[which] = max(self.highest[which], level)
        return -1.0 if t == self.begun and level <= AT_ZERO * self.highest[which] else level

    def handle_event(self, t: float, y: np.ndarray, jumps: Sequence[float] | None = None) -> np.ndarray:
        """The states after an event.

        **Arguments:** `jumps`: factors and shifts of the states.
        """
        self.move_to(t, y)
        self.own.completedIntegratorStep()
        self.own.enterEventMode()
        if jumps is not None:
            self.own.setFloat64([*self.layout.factors, *self.layout.shifts], list(jumps))
        self.own.updateDiscreteStates()
        self.own.enterContinuousTimeMode()
        return np.array(self.own.getFloat64(self.layout.states))


def integrate_unit(
    unit: Unpacked, layout: Layout, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """What a unit of version 3.0 predicts in Model Exchange, with a solver of SciPy between rows and events."""
    from scipy.integrate import solve_ivp

    own = Exchange(unit, layout, trial, exported.one.solver.interpolation == "hold")
    at, y = start
    own.begin(at, y)
    method = "Radau" if exported.steps.method == "radau5" else "DOP853"
    rows = np.full((len(trial.t), len(layout.columns)), np.nan)
    events = [functools.partial(own.indicator, which) for which in range(len(layout.levels))]
    for each in events:
        vars(each).update(terminal=True, direction=-1)
    for row in range(at, len(trial.t)):
        own.row = min(row, len(trial.t) - 2)
        own.move_to(trial.t[row], y)
        rows[row] = own.own.getFloat64(layout.columns)
        if row + 1 == len(trial.t):
            break
        if trial.factor is not None and trial.shift is not None:
            y = own.handle_event(trial.t[row], y, [*trial.factor[row], *trial.shift[row]])
        t, end = trial.t[row : row + 2]
        # Levels may fall and rise again within a long step.
        longest = (end - t) / 8 if events else np.inf
        while t < end:
            size, own.begun = 1e-13 * np.maximum(np.abs(y), 1e-6), t
            found = solve_ivp(own.field, (t, end), y, method, events=events, rtol=1e-9, atol=size, max_step=longest)
            t, y = (found.t[-1], found.y[:, -1]) if found.success else (end, np.full_like(y, np.nan))
            if events:
                y = own.handle_event(t, y)
    own.own.terminate()
    own.own.freeInstance()
    return rows
