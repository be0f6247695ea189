"""SBML files of levels 2 and 3 as models: species, compartments, rules, reactions, functions and events."""

import math
import xml.parsers.expat
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from ..expressions.mathml import ELEMENTS
from ..expressions.operations import OPERATIONS
from ..expressions.tree import Application, Expression, Number, Symbol, measure, substitute
from ..runtime.validation import check_path
from .formulas import MAX_DEPTH, MAX_DEPTH_WRITTEN_OUT, MAX_NODES, TIME
from .system import Event, Model

if TYPE_CHECKING:
    import libsbml

BUILT_IN = ("l3v2extendedmath",)  # part of Level 3 Version 2 that libSBML implements as a package
MAX_SBML_BYTES, MAX_XML_DEPTH = 50_000_000, 400
AVOGADRO = 6.02214179e23  # as SBML Level 3 defines it
# Functions for MathML nodes, by their libSBML names.
NODE_KINDS = ("", "FUNCTION_", "RELATIONAL_", "LOGICAL_")
OPERATION_OF_NODE = {f"{kind}{element.upper()}": name for name, element in ELEMENTS.items() for kind in NODE_KINDS}

# Names of libSBML's errors for duplicate identifiers, and for two rules or assignments of one quantity.
REPEATED = (
    "DuplicateComponentId", "DuplicateLocalParameterId", "MultipleAssignmentOrRateRules",
    "MultipleEventAssignmentsForId", "EventAndAssignmentRuleForId",
)  # fmt: skip


class SBMLError(ValueError):
    """Raised for an SBML file that is damaged, hostile, or uses unsupported features."""


def read_sbml(path: str | Path) -> Model:
    """Reads an SBML file.

    **Arguments:** `path`: a file of SBML Level 2 or 3.

    **Raises:** `SBMLError`, with file and line, for damaged files and for algebraic rules, delays of states, fast
    reactions and packages that change the mathematics.
    """
    try:
        import libsbml
    except ImportError:
        raise ImportError("SBML needs python-libsbml: pip install 'node_fit[petab]'.") from None
    path = Path(path)
    content = read_bytes(path)
    document = libsbml.readSBMLFromString(content.decode("utf-8", errors="replace"))
    for at in range(document.getNumErrors()):
        error = document.getError(at)
        if error.getSeverity() >= libsbml.LIBSBML_SEV_ERROR and error.getErrorId() != libsbml.MissingXMLEncoding:
            reason = " ".join(error.getMessage().split())
            if error.getErrorId() == libsbml.RequiredPackagePresent:  # Its name is at the end of a long message.
                reason = f"it needs the package {document.getUnknownPackagePrefix(0)!r}, which is not read."
            raise SBMLError(f"{path.name}, line {error.getLine()}: {reason[:300]}")
    if document.getModel() is None:
        raise SBMLError(f"{path.name} holds no SBML model.")
    refuse_repeated_names(libsbml, document, path.name)
    return SBMLReader(libsbml, document, path.name).read()


def refuse_repeated_names(library: ModuleType, document: "libsbml.SBMLDocument", place: str) -> None:
    """Refuses duplicate names, and two rules or assignments of one quantity; the later one would win silently."""
    document.getErrorLog().clearLog()  # Any earlier read error, even a harmless one, would disable the check.
    document.getModel().unsetId()  # Nothing refers to it, and it often equals a parameter's name.
    for category in (name for name in vars(library) if name.startswith("LIBSBML_CAT_")):
        document.setConsistencyChecks(getattr(library, category), category == "LIBSBML_CAT_IDENTIFIER_CONSISTENCY")
    document.checkConsistency()
    for at in range(document.getNumErrors()):
        error = document.getError(at)
        if error.getErrorId() in [getattr(library, name) for name in REPEATED]:
            reason = " ".join(error.getMessage().strip().splitlines()[-1].split())
            raise SBMLError(f"{place}, line {error.getLine()}: {reason.rstrip('.')}; remove or rename one.")


def read_bytes(path: Path) -> bytes:
    """Reads an XML file after checking its size, its depth and its document type."""
    check_path(path)
    if not path.is_file():
        raise SBMLError(f"{path} does not exist or is not a file.")
    if path.stat().st_size > MAX_SBML_BYTES:
        raise SBMLError(f"{path.name} has over {MAX_SBML_BYTES:,} bytes, the most for a model.")
    content, depth = path.read_bytes(), 0
    parser = xml.parsers.expat.ParserCreate()

    def refuse(*_: str | int | None) -> NoReturn:
        raise SBMLError(
            f"{path.name}, line {parser.CurrentLineNumber}: it declares a document type or entities, which SBML has no "
            "use for and which may expand without end; remove the declaration."
        )

    def enter(*_: str | dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_XML_DEPTH:
            raise SBMLError(f"{path.name}, line {parser.CurrentLineNumber}: over {MAX_XML_DEPTH} elements are nested.")

    def leave(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = enter, leave
    try:
        parser.Parse(content, True)
    except xml.parsers.expat.ExpatError as error:
        reason = xml.parsers.expat.ErrorString(error.code)
        raise SBMLError(f"{path.name}, line {error.lineno}, column {error.offset + 1}: {reason}.") from None
    return content


class SBMLReader:
    """Converts an SBML document to a `Model`."""

    def __init__(self, library: ModuleType, document: "libsbml.SBMLDocument", place: str):
        self.library, self.document, self.place = library, document, place
        self.model: libsbml.Model = document.getModel()  # pyright: ignore[reportAttributeAccessIssue]
        self.nodes = 0
        names = {value: name[4:] for name, value in vars(library).items() if name.startswith("AST_")}
        self.kinds = {kind: names[kind] for kind in names}
        self.functions: dict[str, tuple[list[str], Expression]] = {}
        self.initial: dict[str, Expression] = {}
        self.rates: dict[str, Expression] = {}
        self.rules: dict[str, Expression] = {}
        self.reactions: dict[str, Expression] = {}
        self.containers: dict[str, str] = {}

    def refuse(self, element: "libsbml.SBase", reason: str) -> NoReturn:
        raise SBMLError(f"{self.place}, line {element.getLine()}: {reason}.")

    def read(self) -> Model:
        self.check_document()
        for definition in self.model.getListOfFunctionDefinitions():
            self.read_function(definition)
        self.read_quantities()
        self.read_starts()
        for reaction in self.model.getListOfReactions():
            self.read_reaction(reaction)
        self.read_rules()
        events = tuple(self.read_event(event, at) for at, event in enumerate(self.model.getListOfEvents()))
        for name in (*self.rules, *self.reactions):
            self.initial.pop(name, None)
        model = Model(self.place, self.initial, self.rates, self.rules, self.reactions, self.containers, events)
        model.check()
        return model

    def check_document(self) -> None:
        if self.document.getLevel() < 2:
            self.refuse(self.model, "SBML Level 1 is not read; convert the file to Level 2 or 3")
        for at in range(self.document.getNumPlugins() if self.document.getLevel() >= 3 else 0):
            package = self.document.getPlugin(at).getPackageName()
            if package not in BUILT_IN and self.document.getPackageRequired(package):
                self.refuse(self.document, f"it needs the package {package!r}, which is not read")
        for rule in self.model.getListOfRules():
            if rule.isAlgebraic():
                self.refuse(rule, "an algebraic rule is not carried out; solve it for one of its quantities")
        if self.model.getElementBySId(TIME) is not None:
            self.refuse(self.model.getElementBySId(TIME), f"it has the name of the time, {TIME!r}; rename it")

    # Mathematics

    def formula(self, element: "libsbml.SBase", local: Mapping[str, Expression] | None = None) -> Expression:
        """Converts the mathematics of an element."""
        node = element.getMath()  # pyright: ignore[reportAttributeAccessIssue]
        if node is None:
            self.refuse(element, "it has no formula")
        return self.convert(node, element, local or {}, 0)

    def convert(
        self, node: "libsbml.ASTNode", element: "libsbml.SBase", local: Mapping[str, Expression], depth: int
    ) -> Expression:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            self.refuse(element, f"its formulas are nested over {MAX_DEPTH} deep, or have over {MAX_NODES:,} parts")
        kind = self.kinds.get(node.getType(), "")
        if kind in ("INTEGER", "REAL", "REAL_E", "RATIONAL"):
            return Number(float(node.getValue()))
        if kind == "NAME":
            return local.get(node.getName(), Symbol(node.getName()))
        constants = {
            "NAME_TIME": Symbol(TIME), "NAME_AVOGADRO": Number(AVOGADRO), "CONSTANT_PI": Number(math.pi),
            "CONSTANT_E": Number(math.e), "CONSTANT_TRUE": Number(True), "CONSTANT_FALSE": Number(False),
        }  # fmt: skip
        if kind in constants:
            return constants[kind]
        children = tuple(
            self.convert(node.getChild(at), element, local, depth + 1) for at in range(node.getNumChildren())
        )
        return self.call(kind, node, element, children)

    def call(
        self, kind: str, node: "libsbml.ASTNode", element: "libsbml.SBase", children: tuple[Expression, ...]
    ) -> Expression:
        if kind == "FUNCTION":
            return self.expand(node.getName(), element, children)
        if kind == "MINUS":
            return Application("negative", children) if len(children) == 1 else Application("-", children)
        if kind == "FUNCTION_LOG":
            return Application("log", (children[1], children[0]))
        if kind == "LOGICAL_IMPLIES":
            return Application("or", (Application("not", children[:1]), children[1]))
        if kind in ("FUNCTION_DELAY", "FUNCTION_RATE_OF"):
            self.refuse(element, f"{'delay' if kind == 'FUNCTION_DELAY' else 'rateOf'} of a state is not carried out")
        if kind not in OPERATION_OF_NODE:
            self.refuse(element, f"{node.getName() or kind.lower()!r} is not a function that is carried out")
        operation = OPERATIONS[OPERATION_OF_NODE[kind]]
        if not operation.fewest <= len(children) <= operation.most:
            self.refuse(element, f"{OPERATION_OF_NODE[kind]!r} has {len(children)} arguments")
        return Application(OPERATION_OF_NODE[kind], children)

    def read_function(self, definition: "libsbml.FunctionDefinition") -> None:
        names = [definition.getArgument(at).getName() for at in range(definition.getNumArguments())]
        body = definition.getBody()
        if body is None:
            self.refuse(definition, f"the function {definition.getId()!r} has no formula")
        self.functions[definition.getId()] = names, self.convert(body, definition, {}, 0)

    def expand(self, name: str, element: "libsbml.SBase", arguments: tuple[Expression, ...]) -> Expression:
        if name not in self.functions:
            self.refuse(element, f"{name!r} is not a function that is defined before its use")
        names, body = self.functions[name]
        if len(names) != len(arguments):
            self.refuse(element, f"the function {name!r} takes {len(names)} arguments, not {len(arguments)}")
        size = measure(body, {name: measure(each) for name, each in zip(names, arguments, strict=True)})
        self.nodes += size.nodes
        if self.nodes > MAX_NODES or size.depth > MAX_DEPTH_WRITTEN_OUT:
            self.refuse(
                element, f"its functions expand to over {MAX_NODES:,} parts, or over {MAX_DEPTH_WRITTEN_OUT} deep"
            )
        return substitute(body, dict(zip(names, arguments, strict=True)))

    # Quantities

    def read_quantities(self) -> None:
        for compartment in self.model.getListOfCompartments():
            self.initial[compartment.getId()] = Number(compartment.getSize() if compartment.isSetSize() else 1.0)
        for parameter in self.model.getListOfParameters():
            self.initial[parameter.getId()] = Number(parameter.getValue() if parameter.isSetValue() else math.nan)
        for species in self.model.getListOfSpecies():
            self.read_species(species)

    def read_species(self, species: "libsbml.Species") -> None:
        name, compartment = species.getId(), species.getCompartment()
        place = self.model.getCompartment(compartment)
        if place is None:
            self.refuse(species, f"the compartment {compartment!r} of {name!r} is not defined")
        is_amount = species.getHasOnlySubstanceUnits() or place.getSpatialDimensionsAsDouble() == 0
        if not is_amount:
            self.containers[name] = compartment
        if species.isSetInitialAmount():
            amount = Number(species.getInitialAmount())
            self.initial[name] = amount if is_amount else Application("/", (amount, Symbol(compartment)))
        elif species.isSetInitialConcentration():
            content = Number(species.getInitialConcentration())
            self.initial[name] = Application("*", (content, Symbol(compartment))) if is_amount else content
        else:
            self.initial[name] = Number(math.nan)

    def read_starts(self) -> None:
        assigned: set[str] = set()
        for assignment in self.model.getListOfInitialAssignments():
            if assignment.getSymbol() in assigned:
                self.refuse(assignment, f"the start of {assignment.getSymbol()!r} is assigned twice; remove one")
            assigned.add(assignment.getSymbol())
            self.initial[assignment.getSymbol()] = self.formula(assignment)

    def read_rules(self) -> None:
        for rule in self.model.getListOfRules():
            name = rule.getVariable()
            if rule.isAssignment():
                self.rules[name] = self.formula(rule)
                self.rates.pop(name, None)
        rated = {rule.getVariable(): rule for rule in self.model.getListOfRules() if rule.isRate()}
        sizes = {name: self.formula(rule) for name, rule in rated.items() if name not in self.containers}
        for name, rule in rated.items():
            rate, container = self.formula(rule), self.containers.get(name)
            if container in self.rules:
                self.refuse(rule, f"the rate of {name!r} is of a concentration in a compartment that has a rule")
            if container is not None:  # of an amount
                rate = Application("*", (rate, Symbol(container)))
                if container in sizes:
                    rate = Application("+", (rate, Application("*", (Symbol(name), sizes[container]))))
            self.rates[name] = rate

    # Reactions and events

    def read_reaction(self, reaction: "libsbml.Reaction") -> None:
        name = reaction.getId()
        if reaction.isSetFast() and reaction.getFast():
            self.refuse(reaction, f"the reaction {name!r} is fast, which is not carried out; write its equilibrium")
        law = reaction.getKineticLaw()
        if law is None:
            return
        local: dict[str, Expression] = {}
        for parameter in (*law.getListOfParameters(), *law.getListOfLocalParameters()):
            full = f"{name}.{parameter.getId()}"
            self.initial[full] = Number(parameter.getValue())
            local[parameter.getId()] = Symbol(full)
        self.reactions[name] = self.formula(law, local)
        for sign, group in (("negative", reaction.getListOfReactants()), ("+", reaction.getListOfProducts())):
            for reference in group:
                self.add_flow(reference, sign, Symbol(name))

    def add_flow(self, reference: "libsbml.SpeciesReference", sign: str, rate: Expression) -> None:
        name = reference.getSpecies()
        species = self.model.getSpecies(name)
        if species is None:
            self.refuse(reference, f"the species {name!r} is not defined")
        amount = self.stoichiometry(reference)
        if species.getBoundaryCondition() or species.getConstant():
            return
        factors = [rate] if amount == Number(1.0) else [amount, rate]
        factor = species.getConversionFactor() or self.model.getConversionFactor()
        if factor:
            factors.append(Symbol(factor))
        flow = factors[0] if len(factors) == 1 else Application("*", tuple(factors))
        term = Application(sign, (flow,)) if sign == "negative" else flow
        before = self.rates.get(name)
        terms = () if before is None else before.arguments if is_sum(before) else (before,)
        self.rates[name] = Application("+", (*terms, term)) if terms else term

    def stoichiometry(self, reference: "libsbml.SpeciesReference") -> Expression:
        if self.document.getLevel() == 2:
            mathematics = reference.getStoichiometryMath()
            return Number(float(reference.getStoichiometry())) if mathematics is None else self.formula(mathematics)
        name = reference.getId()
        if name:
            self.initial.setdefault(name, Number(float(reference.getStoichiometry())))
            if not reference.getConstant() or self.model.getInitialAssignmentBySymbol(name) is not None:
                return Symbol(name)
        if not reference.isSetStoichiometry():
            self.refuse(reference, f"the stoichiometry of {reference.getSpecies()!r} is not given")
        return Number(float(reference.getStoichiometry()))

    def read_event(self, event: "libsbml.Event", at: int) -> Event:
        trigger = event.getTrigger()
        if trigger is None:
            self.refuse(event, "an event has no trigger")
        level_3 = self.document.getLevel() >= 3
        assignments = {
            assignment.getVariable(): self.formula(assignment) for assignment in event.getListOfEventAssignments()
        }
        return Event(
            event.getId() or f"event {at + 1}",
            self.formula(trigger),
            assignments,
            delay=Number(0.0) if event.getDelay() is None else self.formula(event.getDelay()),
            priority=Number(0.0) if event.getPriority() is None else self.formula(event.getPriority()),
            initial=trigger.getInitialValue() if level_3 else True,
            is_persistent=trigger.getPersistent() if level_3 else True,
            from_trigger_time=event.getUseValuesFromTriggerTime(),
        )


def is_sum(formula: Expression) -> TypeGuard[Application]:
    return isinstance(formula, Application) and formula.function == "+"
