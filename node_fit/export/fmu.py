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
# Maximum difference between the two versions, as a share of the range.
AGREE = 1e-6
# Platform names in versions 2.0 and 3.0 of the standard, and suffixes of shared libraries.
PLATFORMS = {
    "linux": ("linux64", "{machine}-linux", ".so"),
    "darwin": ("darwin64", "{machine}-darwin", ".dylib"),
    "win32": ("win64", "{machine}-windows", ".dll"),
}
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
# Functions of the interface that only change its mode and need no action.
SHARED_MODES = ("ExitInitializationMode", "Terminate", "EnterEventMode", "EnterContinuousTimeMode")
CONFIGURATION_MODES = ("EnterConfigurationMode", "ExitConfigurationMode")
MODE_CHANGES = {
    "2.0": (*SHARED_MODES, "EnterInitializationMode", "CancelStep"),
    "3.0": (*SHARED_MODES, *CONFIGURATION_MODES, "EnterStepMode", "EvaluateDiscreteStates"),
}


@dataclass(frozen=True)
class Layout:
    """The value references of a unit's variables; 0 is the time.

    - `states`, `rates`, `inputs`, `columns`: states, their derivatives, inputs, and predictions.
    - `factors`, `shifts`: factors and then shifts applied to the states at an event; empty without events.
    - `levels`: levels of the triggers of all members.
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
        """Returns the layout for a model; its records determine whether it has events at known times."""
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
    """Lists features of a model that a functional mock-up unit doesn't support."""
    refusals: list[str] = []
    if exported.horizon is not None:
        refusals.append("bands that end at a horizon, since a unit does not know when its record began")
    return refusals


def render_fmu(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """Renders the units, by name."""
    start = record_starts(exported, trials[:1])[0][1]
    layout = Layout.of(exported, trials)
    variables = variables_of(exported, layout, start, trials[0].inputs[0])
    sources = {name: text for name, text in render_c(exported).items() if name != "main.c"}

    def numbers(values: Iterable[float]) -> str:
        return ", ".join(repr(float(value)) for value in values)

    scale = np.tile(np.asarray(exported.one.system.scaler.state_scale, np.float64), len(exported.members))
    facts = {
        "start": numbers(start),
        "nominal": numbers(np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)),
        "first_inputs": numbers(trials[0].inputs[0] if layout.inputs else [0.0]),
        "jumps": bool(layout.shifts),
        "triggers": bool(layout.levels),
        "observes": exported.observes_inputs,
    }
    described = {version: describe_unit(exported, version, layout, variables) for version in VERSIONS}
    return {
        f"model_fmi{release[0]}.fmu": archive_unit(release, sources, facts, described[release]) for release in VERSIONS
    }


def archive_unit(version: str, sources: dict[str, str], facts: dict[str, str | bool], description: bytes) -> bytes:
    """Returns one unit as the bytes of its archive.

    **Arguments:** `sources`: C sources of the model. `facts`: variables for the template of the interface.
    """
    template = templates_with({"c": c_string}).get_template("fmu.c")
    all_sources = sources | {"fmu.c": template.render(facts, version_of_fmi=version, quiet=MODE_CHANGES[version])}
    folder, name = platform_names(version)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("modelDescription.xml", description)
        for filename, content in all_sources.items():
            zipped.writestr(f"sources/{filename}", content)
        if version == "3.0":
            zipped.writestr("sources/buildDescription.xml", build_description())
        zipped.writestr(f"binaries/{folder}/{name}", binary(all_sources, name))
    return archive.getvalue()


def platform_names(version: str) -> tuple[str, str]:
    """Returns the folder and the name of the binary for this platform."""
    if sys.platform not in PLATFORMS:
        raise CannotExport(f"an FMU has no binary for {sys.platform}; export on Linux, macOS or Windows, or use c.")
    second, third, suffix = PLATFORMS[sys.platform]
    machine = platform.machine().lower()
    third = third.format(machine=MACHINES.get(machine, machine))
    return (second if version == "2.0" else third), IDENTIFIER + suffix


def binary(sources: dict[str, str], name: str) -> bytes:
    """Compiles sources, and returns the bytes of the shared library."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as place:
        for filename, content in sources.items():
            (Path(place) / filename).write_text(content)
        words = [compiler(), *FLAGS, "-fPIC", "-shared", *SOURCES, "-lm", "-o", name]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the compiler failed: {done.stderr[:2000]}")
        return (Path(place) / name).read_bytes()


def describe_unit(exported: Exported, version: str, layout: Layout, variables: Sequence[Variable]) -> bytes:
    """Returns the model description as XML; ElementTree escapes all names."""
    second = version == "2.0"
    root = XML.Element("fmiModelDescription", fmiVersion=version, modelName="model")
    root.set("generationTool", f"node_fit {__version__}")
    root.set("guid" if second else "instantiationToken", exported.digest)
    root.set("variableNamingConvention", "flat")
    if second and layout.levels:
        root.set("numberOfEventIndicators", str(len(layout.levels)))
    # Inputs that node_fit interpolates linearly change within a step.
    linear = "linear" in exported.input_kinds
    abilities = {"canGetAndSetFMUstate" if second else "canGetAndSetFMUState": "true"}
    abilities |= {"canSerializeFMUstate" if second else "canSerializeFMUState": "true"}
    abilities |= {"providesDirectionalDerivative" + ("" if second else "s"): "true"}
    # Completed solver steps arm triggers; the two versions have different defaults.
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
    units = sorted({variable.unit for variable in variables if variable.unit})
    if units:
        definitions = XML.SubElement(root, "UnitDefinitions")
        for name in units:
            XML.SubElement(definitions, "Unit", name=name)
    listed = XML.SubElement(root, "ModelVariables")
    for variable in variables:
        add_variable(listed, variable, second)
    add_structure(root, layout, second)
    XML.indent(root)
    return XML.tostring(root, encoding="utf-8", xml_declaration=True)


def variables_of(exported: Exported, layout: Layout, start: np.ndarray, inputs: np.ndarray) -> list[Variable]:
    """Returns the variables of a unit, in the order of their references.

    **Arguments:** `start`, `inputs`: initial values, shapes `(state,)` and `(input,)`.
    """
    one, states, columns = exported.one, state_names(exported), exported.columns
    # Predictions have the names of the columns.
    prefixed = [f"state {name}" for name in states]
    jumping = states if layout.shifts else ()
    labels = [*columns, *one.inputs, "time", *prefixed, *(f"der({name})" for name in prefixed)]
    labels += [*(f"multiply {name}" for name in jumping), *(f"add {name}" for name in jumping)]
    labels += [f"level of trigger {which + 1}" for which in range(len(layout.levels))]
    groups = [layout.columns, layout.inputs, [0], layout.states, layout.rates]
    groups += [layout.factors, layout.shifts, layout.levels]
    names = dict(zip(itertools.chain(*groups), unique_names(labels), strict=True))

    def unit_of(name: str) -> str | None:
        return exported.units.get(name) or None

    variables = [Variable(0, names[0], "independent")]
    for reference, name in zip(layout.states, states, strict=True):
        variables.append(
            Variable(
                reference, names[reference], "local", initial="exact", start=start[reference - 1], unit=unit_of(name)
            )
        )
    for reference, state in zip(layout.rates, layout.states, strict=True):
        variables.append(Variable(reference, names[reference], "local", initial="calculated", derivative=state))
    for reference, name, value, held in zip(layout.inputs, one.inputs, inputs, exported.held_inputs, strict=True):
        variability = "discrete" if held else "continuous"
        variables.append(Variable(reference, names[reference], "input", variability, start=value, unit=unit_of(name)))
    for reference, name in zip(layout.columns, itertools.cycle(one.states)):  # of bands too
        variables.append(Variable(reference, names[reference], "output", initial="calculated", unit=unit_of(name)))
    variables += [Variable(reference, names[reference], "input", "discrete", start=1.0) for reference in layout.factors]
    for reference, name in zip(layout.shifts, jumping, strict=True):
        variables.append(Variable(reference, names[reference], "input", "discrete", start=0.0, unit=unit_of(name)))
    return variables + [
        Variable(reference, names[reference], "local", initial="calculated") for reference in layout.levels
    ]


def unique_names(names: Sequence[str]) -> list[str]:
    """Returns the names without line breaks, with a number appended to repeated ones."""
    unique: list[str] = []
    for name in names:
        plain = "".join(c if c.isprintable() else "?" for c in name) or "?"
        number, candidate = 1, plain
        while candidate in unique:
            number, candidate = number + 1, f"{plain} ({number + 1})"
        unique.append(candidate)
    return unique


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
    """Writes which variables are outputs, derivatives of states, and levels of triggers."""
    structure = XML.SubElement(root, "ModelStructure")
    outputs, rates = layout.columns, layout.rates
    if second:
        for name, group in (("Outputs", outputs), ("Derivatives", rates), ("InitialUnknowns", sorted(outputs + rates))):
            place = XML.SubElement(structure, name)
            for reference in group:
                XML.SubElement(place, "Unknown", index=str(reference + 1))
        return
    groups = {"Output": outputs, "ContinuousStateDerivative": rates, "InitialUnknown": outputs + rates}
    for name, group in (groups | {"EventIndicator": layout.levels}).items():
        for reference in group:
            XML.SubElement(structure, name, valueReference=str(reference))


def build_description() -> bytes:
    """Returns the build description of version 3.0, with the sources to compile."""
    root = XML.Element("fmiBuildDescription", fmiVersion="3.0")
    configuration = XML.SubElement(root, "BuildConfiguration", modelIdentifier=IDENTIFIER)
    files = XML.SubElement(configuration, "SourceFileSet", language="C99")
    for name in SOURCES:
        XML.SubElement(files, "SourceFile", name=name)
    return XML.tostring(root, encoding="utf-8", xml_declaration=True)


def run_fmu(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the unit of version 2.0 in Co-Simulation, checked with version 3.0 in Model Exchange.

    FMPy loads both units and checks their descriptions against the standard.

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
    """A unit's description, checked by FMPy, and the folder of its files."""

    described: "ModelDescription"
    folder: str


def unpack_fmu(path: Path, place: Path) -> Unpacked:
    """Reads a unit, and unpacks it inside a folder."""
    import fmpy

    described = fmpy.read_model_description(str(path), validate=True)
    return Unpacked(described, str(fmpy.extract(str(path), str(place / path.stem))))


def step_unit(
    unit: Unpacked, layout: Layout, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """Returns predictions from a unit of version 2.0 in Co-Simulation, stepped from row to row."""
    from fmpy.simulation import instantiate_fmu

    instance = cast("FMU2Slave", instantiate_fmu(unit.folder, unit.described, fmi_type="CoSimulation"))
    first_row, first = start
    instance.setupExperiment(startTime=trial.t[first_row])
    instance.enterInitializationMode()
    instance.setReal(layout.states, list(first))
    instance.exitInitializationMode()
    rows = np.full((len(trial.t), len(layout.columns)), np.nan)
    for row in range(first_row, len(trial.t)):
        if layout.inputs:
            instance.setReal(layout.inputs, list(trial.inputs[row]))
        rows[row] = instance.getReal(layout.columns)
        if row + 1 == len(trial.t):
            break
        length = trial.t[row + 1] - trial.t[row]
        if trial.factor is not None and trial.shift is not None:
            instance.setReal([*layout.factors, *layout.shifts], [*trial.factor[row], *trial.shift[row]])
        linear = [at for at, kind in enumerate(exported.input_kinds) if kind == "linear"]
        if linear:
            slopes = (trial.inputs[row + 1] - trial.inputs[row])[linear] / length
            instance.setRealInputDerivatives([layout.inputs[at] for at in linear], [1] * len(slopes), list(slopes))
        instance.doStep(trial.t[row], length)
    instance.terminate()
    instance.freeInstance()
    return rows


# Share of the highest level below which a level counts as zero, as in the unit.
AT_ZERO = 1e-9


class Exchange:
    """A unit of version 3.0 in Model Exchange, advanced between consecutive rows of a record.

    **Arguments:** `held`: whether each input is held between two rows.
    """

    def __init__(self, unit: Unpacked, layout: Layout, trial: CheckRecord, held: Sequence[bool]):
        from fmpy.simulation import instantiate_fmu

        self.own = cast("FMU3Model", instantiate_fmu(unit.folder, unit.described, fmi_type="ModelExchange"))
        self.layout, self.trial, self.held, self.row = layout, trial, np.array(held, bool), 0
        self.rates, self.place = ((ctypes.c_double * len(layout.states))() for _ in range(2))
        self.indicators = (ctypes.c_double * len(layout.levels))()
        # The maximum of each level so far, and the time at which the solver last started.
        self.highest, self.begun = [0.0] * len(layout.levels), -np.inf

    def begin(self, row: int, y: np.ndarray) -> None:
        """Initializes the unit with the states of a row."""
        self.own.enterInitializationMode(startTime=self.trial.t[row])
        self.own.setFloat64(self.layout.states, list(y))
        self.own.exitInitializationMode()
        self.own.updateDiscreteStates()
        self.own.enterContinuousTimeMode()

    def move_to(self, t: float, y: np.ndarray) -> None:
        """Sets time, states and inputs."""
        unit, trial, row = self.own, self.trial, self.row
        unit.setTime(t)
        self.place[:] = y.tolist()
        unit.setContinuousStates(self.place, len(self.place))
        if self.layout.inputs:
            share = (t - trial.t[row]) / (trial.t[row + 1] - trial.t[row])
            rise = np.where(self.held, 0, np.diff(trial.inputs[row : row + 2], axis=0)[0])
            unit.setFloat64(self.layout.inputs, list(trial.inputs[row] + share * rise))

    def field(self, t: float, y: np.ndarray) -> list[float]:
        """Returns the derivatives of the states."""
        self.move_to(t, y)
        self.own.getContinuousStateDerivatives(self.rates, len(self.rates))
        return list(self.rates)

    def indicator(self, which: int, t: float, y: np.ndarray) -> float:
        """Returns the level of a trigger; -1 if it starts a solve at zero, where it has just acted."""
        self.move_to(t, y)
        self.own.getEventIndicators(self.indicators, len(self.indicators))
        level = self.indicators[which]
        self.highest[which] = max(self.highest[which], level)
        return -1.0 if t == self.begun and level <= AT_ZERO * self.highest[which] else level

    def handle_event(self, t: float, y: np.ndarray, jumps: Sequence[float] | None = None) -> np.ndarray:
        """Returns the states after an event.

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
    """Returns predictions from a unit of version 3.0 in Model Exchange, solved by SciPy between rows and events."""
    from scipy.integrate import solve_ivp

    exchange = Exchange(unit, layout, trial, exported.held_inputs)
    first_row, y = start
    exchange.begin(first_row, y)
    method = "Radau" if exported.steps.method == "radau5" else "DOP853"
    rows = np.full((len(trial.t), len(layout.columns)), np.nan)
    events = [functools.partial(exchange.indicator, which) for which in range(len(layout.levels))]
    for event in events:
        vars(event).update(terminal=True, direction=-1)
    for row in range(first_row, len(trial.t)):
        exchange.row = min(row, len(trial.t) - 2)
        exchange.move_to(trial.t[row], y)
        if layout.inputs:
            exchange.own.setFloat64(layout.inputs, list(trial.inputs[row]))
        rows[row] = exchange.own.getFloat64(layout.columns)
        if row + 1 == len(trial.t):
            break
        if trial.factor is not None and trial.shift is not None:
            y = exchange.handle_event(trial.t[row], y, [*trial.factor[row], *trial.shift[row]])
        t, end = trial.t[row : row + 2]
        # Levels can fall and rise again within a long step.
        longest = (end - t) / 8 if events else np.inf
        while t < end:
            size, exchange.begun = 1e-13 * np.maximum(np.abs(y), 1e-6), t
            solution = solve_ivp(
                exchange.field, (t, end), y, method, events=events, rtol=1e-9, atol=size, max_step=longest
            )
            t, y = (solution.t[-1], solution.y[:, -1]) if solution.success else (end, np.full_like(y, np.nan))
            if events:
                y = exchange.handle_event(t, y)
    exchange.own.terminate()
    exchange.own.freeInstance()
    return rows
