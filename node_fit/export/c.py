"""The target `c`: a model as a header and a source in C99, and a program that simulates CSV records."""

import functools
import itertools
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import DTypeLike

from ..runtime.serialization import __version__
from ..solver.methods import tableau
from .functions import Exported
from .tracing import (
    DOT,
    ELEMENTWISE,
    INFIX,
    REDUCTIONS,
    SAME_CALLED,
    TAKE,
    CannotExport,
    Operand,
    Operation,
    Program,
    is_integral,
)

if TYPE_CHECKING:
    from jinja2 import Environment

Number = bool | int | float | np.generic
# C signatures of the functions of each member; results come last.
SIGNATURES = {
    "rates": "real t, const real *z, const real *v | real *result",
    "slopes": "real t, const real *z, const real *v | real *result",
    "field": "real t, const real *y, const real *u | real *result",
    "jacobian": "real t, const real *y, const real *u | real *result",
    "levels": "real t, const real *z, const real *v | real *result",
    "heights": "real t, const real *z, const real *v | real *result",
    "jumped": "real t, const real *z, const real *v | real *result",
    "outputs": "const real *z | real *result",
    "channels": "const real *z | real *result",
    "states": "const real *z | real *result",
    "line": "const real *y | real *result",
    "start": "const real *first, const real *ys, const real *us, const real *ts, const real *there, real t"
    " | real *result",
}
# Signature of channels that depend on inputs or on the time.
OF_INPUTS = "real t, const real *z, const real *v | real *result"
# Radau IIA of order 5 (Hairer and Wanner, Solving Ordinary Differential Equations II, 1996, table IV.5.6).
ROOT = np.sqrt(6)
RADAU_A = np.array(
    [
        [(88 - 7 * ROOT) / 360, (296 - 169 * ROOT) / 1800, (-2 + 3 * ROOT) / 225],
        [(296 + 169 * ROOT) / 1800, (88 + 7 * ROOT) / 360, (-2 - 3 * ROOT) / 225],
        [(16 - ROOT) / 36, (16 + ROOT) / 36, 1 / 9],
    ]
)
RADAU_C = np.array([(4 - ROOT) / 10, (4 + ROOT) / 10, 1])
COMPILE = "cc -std=c99 -O2 main.c model.c -lm -o model"
# Maximum size of an array whose assignments are unrolled.
UNROLLED_SIZE = 8
# Maximum number of operations in one expression.
MOST_NESTED = 16
WIDTH = 110

C_INFIX = INFIX | {"and": "&&", "or": "||"}
INVERSES = ("asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")
C_CALLED = {name: name for name in (*SAME_CALLED, *INVERSES, "erf", "pow")} | {
    "abs": "fabs",
    "rem": "fmod",
    "round": "rint",
}
# Functions that C lacks.
HELPERS = {
    "max": "static real larger(real a, real b) { return a > b || a != a ? a : b; }",
    "min": "static real smaller(real a, real b) { return a < b || a != a ? a : b; }",
    "sign": "static real sign(real a) { return a > 0 ? (real)1 : a < 0 ? (real)-1 : a; }",
    "logistic": "static real logistic(real a) { return 1 / (1 + EXP(-a)); }",
    "integer_pow": """static real power(real a, int n)
{
    real found = 1;
    int k = n < 0 ? -n : n;
    for (; k > 0; k >>= 1) {
        if (k & 1)
            found *= a;
        a *= a;
    }
    return n < 0 ? 1 / found : found;
}""",
}
BEGUN = {
    "reduce_sum": "0",
    "reduce_prod": "1",
    "reduce_max": "-INFINITY",
    "reduce_min": "INFINITY",
    "reduce_and": "1",
    "reduce_or": "0",
}


@functools.cache
def tsitouras() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns stage weights, result weights and nodes, without the last stage, whose weight is 0."""
    table = tableau("tsit5")
    stages = int(np.flatnonzero(table.b)[-1]) + 1
    a = np.zeros((stages, stages))
    for stage, row in enumerate(table.a[: stages - 1], start=1):
        a[stage, : len(row)] = row
    return a, np.asarray(table.b[:stages], np.float64), np.array([0.0, *table.c[: stages - 1]])


def templates_with(filters: Mapping[str, Callable[[str], str]]) -> "Environment":
    """Returns the environment of this folder's templates, with filters that turn names into literals.

    An undefined name raises an error, so that no part of a file is silently left empty.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("node_fit.export", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    environment.filters.update(filters)
    return environment


def on_one_line(text: str) -> str:
    """Removes line breaks from a name, for the first line of a CSV file."""
    return "".join(c if c.isprintable() else " " for c in text)


def c_string(text: str) -> str:
    """Returns a C string literal; bytes other than letters, digits and spaces become octal escapes."""
    plain = string.ascii_letters + string.digits + " "
    return '"' + "".join(chr(byte) if chr(byte) in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def render_c(exported: Exported) -> dict[str, str]:
    """Renders the files of the target, by name."""
    facts = c_facts(exported)
    sources = templates_with({"c": c_string})
    return {name: sources.get_template(name).render(facts) for name in ("model.h", "model.c", "main.c")}


def state_names(exported: Exported) -> tuple[str, ...]:
    """Returns the names of the states of all members."""
    names, count = exported.one.latent, len(exported.members)
    return names if count == 1 else tuple(f"{name} of member {m}" for m in range(count) for name in names)


def c_facts(exported: Exported) -> dict[str, object]:
    """Returns the variables of the C templates."""
    printer, one, steps = Printer(exported.dtype), exported.one, exported.steps
    scaler, count = one.system.scaler, len(exported.members)
    used, signatures = needed_functions(exported), signatures_of(exported)
    texts = [
        printer.function(f"{name}_{m}", program)
        for m, programs in enumerate(exported.members)
        for name, program in programs.items()
        if name in used
    ]
    shared = {"scale_inputs": exported.inputs_scaled if exported.is_driven else None, "combine": exported.combined}
    texts += [printer.function(name, program) for name, program in shared.items() if program is not None]

    def numbers(values: Iterable[Number]) -> str:
        return ", ".join(printer.bare(exported.dtype.type(value)) for value in values)

    a, b, c = tsitouras()
    return {
        "version": __version__,
        "digest": exported.digest,
        "real": exported.precision,
        "members": count,
        "states": tuple(map(on_one_line, state_names(exported))),
        "latent": one.latent,
        "channels": tuple(map(on_one_line, one.states)),
        "inputs": tuple(map(on_one_line, one.inputs)),
        "columns": tuple(map(on_one_line, exported.columns)),
        "time": on_one_line(one.system.time),
        "combined": exported.combined is not None,
        "triggers": len(getattr(one.field, "triggers", ())),
        "degree": max(exported.input_degrees, default=0),
        "degrees": exported.input_degrees,
        "rows": exported.rows_read,
        "past": exported.reads_past,
        "washout": one.start.washout,
        "steady": exported.is_steady,
        "turns": exported.turns,
        "turns_text": numbers([turn or 0.0 for turn in exported.turns]),
        "horizon": literal(exported.horizon),
        "time_shift": literal(float(scaler.time_shift)),
        "time_scale": literal(float(scaler.time_scale)),
        "longest": literal(steps.longest),
        "fewest": steps.fewest,
        "implicit": steps.method == "radau5",
        "solves": steps.method == "radau5" or exported.is_steady,
        "settled": "1e-12" if exported.precision == "double" else "1e-6",
        "halvings": 50 if exported.precision == "double" else 22,
        "radau_a": ", ".join(f"{{{numbers(row)}}}" for row in RADAU_A),
        "radau_c": numbers(RADAU_C),
        "stages": len(b),
        "tsit_a": [numbers(row) for row in a],
        "tsit_b": numbers(b),
        "tsit_c": numbers(c),
        "preamble": printer.preamble(),
        "functions": texts,
        "observes": exported.observes_inputs,
        "signatures": {name: f", {text.replace(' | ', ', ')}" for name, text in signatures.items()},
        "dispatched": [(name, arguments_of(text)) for name, text in signatures.items() if name in used],
        "digits": 17 if exported.precision == "double" else 9,
    }


def needed_functions(exported: Exported) -> set[str]:
    """Returns the names of a member's functions that the source calls."""
    unread = {"outputs"} if exported.combined is None else {"channels"}
    unread |= set() if exported.members[0].get("slopes") else {"slopes"}
    return set(exported.members[0]) - unread


def signatures_of(exported: Exported) -> dict[str, str]:
    """Returns the signatures of a member's functions, by name."""
    return SIGNATURES | ({"outputs": OF_INPUTS, "channels": OF_INPUTS} if exported.observes_inputs else {})


def arguments_of(signature: str) -> str:
    return ", ".join(part.split()[-1].lstrip("*") for part in signature.replace("|", ",").split(","))


def literal(value: float | None) -> str:
    """Returns a C literal of a double; empty for None."""
    return "" if value is None else "HUGE_VAL" if np.isinf(value) else repr(float(value))


class Printer:
    """A printer of C code that collects the tables and helper functions of its programs.

    **Arguments:** `dtype`: dtype of `real`, float64 or float32.
    """

    def __init__(self, dtype: DTypeLike):
        self.dtype = np.dtype(dtype)
        self.tables: dict[tuple[str, bytes], str] = {}
        self.definitions: list[str] = []
        self.helpers: set[str] = set()

    @property
    def suffix(self) -> str:
        return "f" if self.dtype == np.float32 else ""

    def number(self, value: Number) -> str:
        """Returns a literal, in parentheses if it has a sign."""
        text = self.bare(value)
        return f"({text})" if text.startswith("-") else text

    def bare(self, value: Number) -> str:
        """Returns a literal without parentheses around it."""
        if is_integral(value):
            return str(int(value))
        number = float(cast(float, value))
        if not np.isfinite(number):
            return "(real)NAN" if np.isnan(number) else "(real)INFINITY" if number > 0 else "-(real)INFINITY"
        text = str(np.asarray(number, self.dtype)[()])
        return (text if "." in text or "e" in text else text + ".0") + self.suffix.upper()

    def table(self, values: np.ndarray) -> str:
        """Returns the name of a table of constants."""
        kind = "real" if values.dtype.kind == "f" else "int"
        values = np.ascontiguousarray(values)
        key = kind, values.tobytes()
        if key not in self.tables:
            self.tables[key] = f"{'w' if kind == 'real' else 'at'}{len(self.tables)}"
            numbers = wrap([self.bare(value) for value in values.ravel()])
            self.definitions.append(f"static const {kind} {self.tables[key]}[{values.size}] = {{\n{numbers}}};")
        return self.tables[key]

    def function(self, name: str, program: Program) -> str:
        """Returns a function `name(arguments, results)`; scalars are passed by value, arrays by address."""
        return Function(self, program).text(name)

    def preamble(self) -> str:
        """Returns the code before the functions: helpers and tables."""
        helpers = [text.replace("EXP(", f"exp{self.suffix}(") for key, text in HELPERS.items() if key in self.helpers]
        return "\n\n".join([*helpers, *self.definitions])


def wrap(words: Sequence[str]) -> str:
    line = ""
    lines: list[str] = []
    for word in words:
        if len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = ""
        line += f"{word}, "
    return "".join(f"    {text}\n" for text in [*lines, line.rstrip()] if text)


class Function:
    """A printer of one program."""

    def __init__(self, printer: Printer, program: Program):
        self.printer, self.program = printer, program
        self.made = {id(operation.output): operation for operation in program.operations}
        self.readers: dict[int, list[Operation | None]] = {}
        for operation in program.operations:
            for operand in operation.inputs:
                self.readers.setdefault(id(operand), []).append(operation)
        for operand in program.results:
            self.readers.setdefault(id(operand), []).append(None)
        self.names = {id(operand): f"a{index}" for index, operand in enumerate(program.arguments)}
        self.nested: dict[int, int] = {}
        self.lines: list[str] = []

    def text(self, name: str) -> str:
        program = self.program
        for operation in program.operations:
            if not self.is_inlined(operation):
                self.compute(operation)
        for index, result in enumerate(program.results):
            self.store(f"r{index}", result, [(result, np.arange(result.size))])
        parameters = [
            f"real a{index}" if not argument.shape else f"const real *a{index}"
            for index, argument in enumerate(program.arguments)
        ]
        parameters += [f"real *r{index}" for index in range(len(program.results))]
        body = "\n".join(self.lines)
        # Unused arguments, such as the time of an autonomous field.
        unused = [
            f"    (void)a{index};"
            for index, argument in enumerate(program.arguments)
            if id(argument) not in self.readers
        ]
        return f"static void {name}({', '.join(parameters)})\n{{\n" + "\n".join([*unused, body]) + "\n}"

    def is_inlined(self, operation: Operation) -> bool:
        """Whether an operation is inlined where it is read, instead of stored in a variable."""
        if operation.name == TAKE:
            readers = self.readers[id(operation.output)]
            small = all(user is None or user.output.size <= UNROLLED_SIZE for user in readers) and (
                operation.output.size <= UNROLLED_SIZE
            )
            return len(operation.inputs) == 1 or (small and all(user and user.name in ELEMENTWISE for user in readers))
        if operation.name not in ELEMENTWISE:
            return False
        readers = self.readers[id(operation.output)]
        reader = readers[0]
        count = 1 + sum(self.nested.get(id(operand), 0) for operand in operation.inputs)
        fits = len(readers) == 1 and count <= MOST_NESTED
        same = reader is None or (reader.name in ELEMENTWISE and reader.output.size == operation.output.size)
        self.nested[id(operation.output)] = count if fits and same else 0
        return fits and same

    def compute(self, operation: Operation) -> None:
        """Writes the code that computes an operation's output."""
        output = operation.output
        name = f"v{len(self.names)}"
        kind = "int" if output.dtype.kind in "bi" else "real"
        self.names[id(output)] = name
        if operation.name in ELEMENTWISE and output.size == 1:
            self.lines.append(f"    const {kind} {name} = {self.call(operation, np.zeros(1, int))};")
            return
        self.lines.append(f"    {kind} {name}[{output.size}];")
        if operation.name in ELEMENTWISE:
            self.store(name, output, [(operation, np.arange(output.size))])
        elif operation.name == TAKE:
            self.store(name, output, self.parts(operation))
        elif operation.name == DOT:
            self.product(name, operation)
        elif operation.name in REDUCTIONS:
            self.reduction(name, operation)
        else:
            raise CannotExport(f"C has no {operation.name!r}.")

    def parts(self, operation: Operation) -> list[tuple[Operand, np.ndarray]]:
        """Splits a `take` into runs that read from a single input, with their places in it."""
        sizes = np.cumsum([0, *(operand.size for operand in operation.inputs)])
        places = operation.places.ravel()
        source = sizes.searchsorted(places, side="right") - 1
        runs: list[tuple[Operand, np.ndarray]] = []
        for which, run in itertools.groupby(range(len(places)), key=source.tolist().__getitem__):
            runs.append((operation.inputs[which], places[list(run)] - sizes[which]))
        return runs

    def store(self, name: str, output: Operand, parts: Sequence[tuple[Operand | Operation, np.ndarray]]) -> None:
        """Writes the assignments to an array from places in inputs or in the result of an operation."""
        begin = 0
        for source, places in parts:
            take: Callable[[np.ndarray], str] = lambda index, source=source: (  # noqa: E731
                self.call(source, index) if isinstance(source, Operation) else self.read(source, index)
            )
            if len(places) <= UNROLLED_SIZE:
                for index, place in enumerate(places):
                    self.lines.append(f"    {name}[{begin + index}] = {take(np.array([place]))};")
            else:
                where = "i" if begin == 0 else f"{begin} + i"
                self.lines.append(f"    for (int i = 0; i < {len(places)}; i++)")
                self.lines.append(f"        {name}[{where}] = {take(places)};")
            begin += len(places)

    def read(self, operand: Operand, places: np.ndarray) -> str:
        """Returns an operand's element at places, one per iteration of a loop over `i`, or at one place."""
        if isinstance(operand, np.ndarray):
            values = operand.ravel()[places]
            if np.array_equal(values, np.full_like(values, values[0]), equal_nan=values.dtype.kind == "f"):
                return self.printer.number(values[0])
            return f"{self.printer.table(operand.ravel())}[{self.index(places)}]"
        if id(operand) in self.names:
            name = self.names[id(operand)]
            is_number = (name.startswith("a") and not operand.shape) or (
                id(operand) in self.made and self.made[id(operand)].name in ELEMENTWISE and operand.size == 1
            )
            return name if is_number else f"{name}[{self.index(places)}]"
        operation = self.made[id(operand)]
        if operation.name == TAKE:
            inner = operation.places.ravel()[places]
            sizes = np.cumsum([0, *(part.size for part in operation.inputs)])
            which = int(sizes.searchsorted(int(inner[0]), side="right")) - 1
            return self.read(operation.inputs[which], inner - sizes[which])
        return f"({self.call(operation, places)})"

    def index(self, places: np.ndarray) -> str:
        """Returns places as an expression in the loop variable `i`."""
        count, first = len(places), int(places[0])
        if count == 1 or (places == first).all():
            return str(first)
        for row in (count, *(m for m in range(2, count) if count % m == 0)):
            table = places.reshape(-1, row)
            down, across = (int(table[1, 0] - first) if len(table) > 1 else 0), int(table[0, 1] - first)
            if (table == first + down * np.arange(len(table))[:, None] + across * np.arange(row)[None]).all():
                return as_sum([(down, f"(i / {row})"), (across, "i" if row == count else f"(i % {row})")], first)
        return f"{self.printer.table(places.astype(np.int64))}[i]"

    def call(self, operation: Operation, places: np.ndarray) -> str:
        """Returns an elementwise operation as an expression."""
        name, printer = operation.name, self.printer
        operands = [self.read(operand, places if operand.size > 1 else places * 0) for operand in operation.inputs]
        if name in C_INFIX:
            return (
                f" {C_INFIX[name]} ".join(f"{operand}" for operand in operands)
                if name not in ("sub", "div")
                else (f"{operands[0]} {C_INFIX[name]} {operands[1]}")
            )
        if name in C_CALLED:
            return f"{C_CALLED[name]}{printer.suffix}({', '.join(operands)})"
        if name in HELPERS:
            printer.helpers.add(name)
            called = {"max": "larger", "min": "smaller", "integer_pow": "power"}.get(name, name)
            return f"{called}({', '.join([*operands, *([str(operation.power)] if name == 'integer_pow' else [])])})"
        match name:
            case "neg":
                return f"-{operands[0]}"
            case "not":
                return f"!{operands[0]}"
            case "xor":
                return f"{operands[0]} != {operands[1]}"
            case "square":
                printer.helpers.add("integer_pow")
                return f"power({operands[0]}, 2)"
            case "rsqrt":
                return f"1 / sqrt{printer.suffix}({operands[0]})"
            case "is_finite":
                return f"isfinite({operands[0]})"
            case "select_n" if len(operands) == 3:
                return f"{operands[0]} ? {operands[2]} : {operands[1]}"
            case "convert_element_type":
                return f"(int){operands[0]}" if operation.output.dtype.kind in "bi" else f"(real){operands[0]}"
            case _:
                raise CannotExport(f"the model uses {name!r} of JAX, for which there is nothing in C.")

    def product(self, name: str, operation: Operation) -> None:
        """Writes a product of stacks of matrices, with an innermost loop that compilers can vectorise."""
        left, right = operation.inputs
        (stacks, rows, inner), columns = left.shape, right.shape[2]
        lines = self.lines
        lines.append(f"    for (int i = 0; i < {operation.output.size}; i++)\n        {name}[i] = 0;")
        if columns == 1 and stacks == 1 and rows > 1:
            table = self.plain(transpose(left) if isinstance(left, np.ndarray) else left)
            place = f"k * {rows} + i" if isinstance(left, np.ndarray) else f"i * {inner} + k"
            lines.append(f"    for (int k = 0; k < {inner}; k++) {{")
            lines.append(f"        const real x = {self.plain(right)}[k];")
            lines.append(
                f"        for (int i = 0; i < {rows}; i++)\n            {name}[i] += {table}[{place}] * x;\n    }}"
            )
            return
        a, b = self.plain(left), self.plain(right)
        lines.append(f"    for (int s = 0; s < {stacks}; s++)\n        for (int j = 0; j < {rows}; j++)")
        lines.append(f"            for (int k = 0; k < {inner}; k++) {{")
        lines.append(f"                const real x = {a}[(s * {rows} + j) * {inner} + k];")
        lines.append(f"                for (int i = 0; i < {columns}; i++)")
        target, source = f"(s * {rows} + j) * {columns} + i", f"(s * {inner} + k) * {columns} + i"
        lines.append(f"                    {name}[{target}] += {b}[{source}] * x;\n            }}")

    def reduction(self, name: str, operation: Operation) -> None:
        """Writes a reduction of each row."""
        (rows,), kind = operation.inputs, operation.name
        count, array = rows.shape[1], self.plain(rows)
        value = f"{array}[i * {count} + k]"
        if kind in ("reduce_max", "reduce_min"):
            self.printer.helpers.add(kind[-3:])
            step = f"{'larger' if kind == 'reduce_max' else 'smaller'}({value}, {name}[i])"
        else:
            sign = {"reduce_sum": "+", "reduce_prod": "*", "reduce_and": "&&", "reduce_or": "||"}[kind]
            step = f"{name}[i] {sign} {value}"
        self.lines.append(f"    for (int i = 0; i < {rows.shape[0]}; i++) {{\n        {name}[i] = {BEGUN[kind]};")
        self.lines.append(f"        for (int k = 0; k < {count}; k++)\n            {name}[i] = {step};\n    }}")

    def plain(self, operand: Operand) -> str:
        """Returns the name of an array that holds the operand's elements in order."""
        if isinstance(operand, np.ndarray):
            return self.printer.table(operand)
        if id(operand) in self.names:
            name = self.names[id(operand)]
            if not name.startswith("a") or operand.shape:
                is_number = (
                    id(operand) in self.made and self.made[id(operand)].name in ELEMENTWISE and operand.size == 1
                )
                return f"(&{name})" if is_number else name
            return f"(&{name})"
        operation = self.made[id(operand)]
        if operation.name == TAKE and len(operation.inputs) == 1 and is_whole(operation):
            return self.plain(operation.inputs[0])
        name = f"v{len(self.names)}"
        self.names[id(operand)] = name
        self.lines.append(f"    {'int' if operand.dtype.kind in 'bi' else 'real'} {name}[{operand.size}];")
        self.store(name, operand, self.parts(operation))
        return name


def is_whole(operation: Operation) -> bool:
    """Whether a `take` of one input keeps all of its elements in order."""
    places = operation.places.ravel()
    return places.size == operation.inputs[0].size and bool((places == np.arange(places.size)).all())


def transpose(matrices: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(matrices.transpose(0, 2, 1))


def as_sum(terms: Sequence[tuple[int, str]], constant: int) -> str:
    """Returns a sum such as `2 * i + 1` from factors with their names."""
    products = [name if factor == 1 else f"{factor} * {name}" for factor, name in terms if factor]
    return " + ".join(products + ([str(constant)] if constant else [])) or "0"
