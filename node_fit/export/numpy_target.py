"""The target `numpy`: a model as one readable Python file that needs only NumPy."""

from collections.abc import Sequence

import numpy as np

from ..runtime.serialization import __version__
from .c import RADAU_A, RADAU_C, needed_functions, signatures_of, state_names, templates_with, tsitouras
from .functions import Exported
from .tracing import DOT, ELEMENTWISE, INFIX, SAME_CALLED, TAKE, CannotExport, Operand, Operation, Program, is_integral

NUMPY_INFIX = INFIX | {"and": "&", "or": "|", "xor": "^"}
NUMPY_CALLED = {name: f"np.{name}" for name in (*SAME_CALLED, "sign", "abs", "square")} | {
    "asin": "np.arcsin",
    "acos": "np.arccos",
    "atan": "np.arctan",
    "asinh": "np.arcsinh",
    "acosh": "np.arccosh",
    "atanh": "np.arctanh",
    "pow": "np.power",
    "atan2": "np.arctan2",
    "rem": "np.fmod",
    "max": "np.maximum",
    "min": "np.minimum",
    "is_finite": "np.isfinite",
    "not": "np.logical_not",
    "erf": "erf",
    "logistic": "logistic",
    "round": "np.rint",
}
REDUCED = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_and": "all",
    "reduce_or": "any",
}
# Maximum length of an inlined expression [characters].
LONGEST_EXPRESSION = 70


class NumpyPrinter:
    """A printer of programs as functions; arrays are flat, and an array of one element is a scalar."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.definitions: list[str] = []
        self.uses_erf = False

    def table(self, values: np.ndarray) -> str:
        """Returns the name of a constant array."""
        key = str(values.dtype), values.shape, np.ascontiguousarray(values).tobytes()
        if key not in self.tables:
            name = self.tables[key] = f"{'W' if values.ndim == 2 else 'C'}{len(self.tables)}"
            text = np.array2string(values, separator=", ", threshold=10**9, max_line_width=118, floatmode="unique")
            self.definitions.append(f"{name} = np.array(\n{text.replace('nan', 'np.nan').replace('inf', 'np.inf')}\n)")
        return self.tables[key]

    def function(self, name: str, arguments: Sequence[str], program: Program) -> str:
        return NumpyFunction(self, program, arguments).text(name)


class NumpyFunction:
    """A printer of one program."""

    def __init__(self, printer: NumpyPrinter, program: Program, arguments: Sequence[str]):
        self.printer, self.program, self.arguments = printer, program, arguments
        self.texts: dict[int, str] = {}
        self.uses: dict[int, int] = {}
        for operand in [x for operation in program.operations for x in operation.inputs] + list(program.results):
            self.uses[id(operand)] = self.uses.get(id(operand), 0) + 1
        self.lines: list[str] = []
        for value, argument in zip(program.arguments, arguments, strict=True):
            self.texts[id(value)] = (
                f"{argument}[0]" if value.shape and value.size == 1 and len(value.shape) == 1 else argument
            )
            if len(value.shape) > 1:
                self.lines.append(f"    {argument} = {argument}.ravel(){'[0]' if value.size == 1 else ''}")

    def text(self, name: str) -> str:
        for operation in self.program.operations:
            text = self.expression(operation)
            cheap = operation.name in ELEMENTWISE or operation.name == TAKE
            atom = text.isidentifier()
            if atom or (cheap and self.uses[id(operation.output)] == 1 and len(text) <= LONGEST_EXPRESSION):
                self.texts[id(operation.output)] = (
                    text
                    if atom
                    or (
                        text.endswith(("]", ")"))
                        and "(" not in text[:1]
                        and (operation.name == TAKE or operation.name in NUMPY_CALLED)
                    )
                    else f"({text})"
                )
            else:
                variable = f"x{len(self.lines)}"
                self.lines.append(f"    {variable} = {text}")
                self.texts[id(operation.output)] = variable
        results = [self.reshape_result(result) for result in self.program.results]
        head = f"def {name}({', '.join(self.arguments)}):"
        return "\n".join([head, *self.lines, f"    return {', '.join(map(without_parentheses, results))}"])

    def reshape_result(self, result: Operand) -> str:
        text = self.read(result)
        if len(result.shape) == 1:
            return f"np.array([{text}])" if result.size == 1 else text
        return f"np.reshape({text}, {result.shape})"

    def read(self, operand: Operand) -> str:
        """Returns an operand as a flat array."""
        if not isinstance(operand, np.ndarray):
            return self.texts[id(operand)]
        values = operand.ravel()
        if values.size == 1 or (values.size and (values == values[0]).all() and values.dtype.kind == "b"):
            return number(values[0])
        return self.printer.table(values)

    def expression(self, operation: Operation) -> str:
        name = operation.name
        if name == TAKE:
            return self.take(operation)
        if name == DOT:
            return self.product(operation)
        operands = [self.read(operand) for operand in operation.inputs]
        if name in REDUCED:
            rows, count = operation.inputs[0].shape
            summed = f"np.reshape({operands[0]}, ({rows}, {count})).{REDUCED[name]}(1)"
            return summed if rows > 1 else f"np.{REDUCED[name]}({operands[0]})"
        if name in NUMPY_INFIX:
            return f" {NUMPY_INFIX[name]} ".join(operands)
        if name in NUMPY_CALLED:
            self.printer.uses_erf |= name == "erf"
            return f"{NUMPY_CALLED[name]}({', '.join(without_parentheses(operand) for operand in operands)})"
        match name:
            case "neg":
                return f"-{operands[0]}"
            case "integer_pow":
                return (
                    f"{operands[0]} ** {operation.power}"
                    if operation.power >= 0
                    else f"{operands[0]} ** {operation.power}.0"
                )
            case "rsqrt":
                return f"1 / np.sqrt({operands[0]})"
            case "select_n" if len(operands) == 3:
                return f"np.where({operands[0]}, {operands[2]}, {operands[1]})"
            case "convert_element_type":
                kind = {"b": "np.bool_", "i": "np.int64"}.get(operation.output.dtype.kind, "np.float64")
                return f"{kind}({operands[0]})" if operation.output.size == 1 else f"{operands[0]}.astype({kind})"
            case _:
                raise CannotExport(f"the model uses {name!r} of JAX, for which there is nothing in NumPy.")

    def take(self, operation: Operation) -> str:
        places, output = operation.places.ravel(), operation.output
        if len(operation.inputs) == 1:
            return self.pick(self.read(operation.inputs[0]), operation.inputs[0].size, places)
        sizes = np.cumsum([0, *(operand.size for operand in operation.inputs)])
        joined = "np.hstack([" + ", ".join(self.read(operand) for operand in operation.inputs) + "])"
        if output.size == sizes[-1] and (places == np.arange(output.size)).all():
            return joined
        return self.pick(joined, int(sizes[-1]), places)

    def pick(self, text: str, size: int, places: np.ndarray) -> str:
        """Returns an expression for places of a flat array."""
        if size == 1:
            return text if len(places) == 1 else f"np.full({len(places)}, {text})"
        if len(places) == size and (places == np.arange(size)).all():
            return text
        if len(places) == 1:
            return f"{text}[{places[0]}]"
        step = places[1] - places[0]
        if step > 0 and (np.diff(places) == step).all():
            return f"{text}[{places[0]}:{places[-1] + 1}{'' if step == 1 else f':{step}'}]"
        if len(places) <= 8:
            return f"{text}[{places.tolist()}]"
        return f"{text}[{self.printer.table(places)}]"

    def product(self, operation: Operation) -> str:
        left, right = operation.inputs
        (stacks, rows, inner), columns = left.shape, right.shape[2]
        if inner == 1 and stacks == 1:
            a, b = (self.read(operand) for operand in (left, right))
            return f"np.outer({a}, {b}).ravel()" if rows > 1 and columns > 1 else f"{a} * {b}"
        if stacks == 1:
            a = self.matrix(left, rows, inner)
            b = self.matrix(right, inner, columns)
            flat = columns == 1 or rows == 1
            product = f"{a} @ {b}"
            if rows == 1 and columns == 1:
                return product
            return product if flat else f"({product}).ravel()"
        a, b = (f"np.reshape({self.read(operand)}, {operand.shape})" for operand in (left, right))
        return f"({a} @ {b}).ravel()"

    def matrix(self, operand: Operand, rows: int, columns: int) -> str:
        """Returns an operand as a matrix, or as a vector if the product allows it."""
        if isinstance(operand, np.ndarray):
            return self.printer.table(operand.reshape(rows, columns) if min(rows, columns) > 1 else operand.ravel())
        text = self.read(operand)
        if operand.size == 1:
            return f"np.array([{text}])"
        return text if min(rows, columns) == 1 else f"np.reshape({text}, ({rows}, {columns}))"


def without_parentheses(text: str) -> str:
    """Removes a pair of parentheses around the whole text."""
    depths = np.cumsum([(c == "(") - (c == ")") for c in text])
    return text[1:-1] if text.startswith("(") and (depths[:-1] > 0).all() else text


def number(value: bool | int | float | np.generic) -> str:
    if isinstance(value, np.bool_ | bool):
        return str(bool(value))
    if is_integral(value):
        return str(int(value))
    text = (
        "np.nan"
        if np.isnan(value)
        else "np.inf"
        if value == np.inf
        else "-np.inf"
        if value == -np.inf
        else repr(float(value))
    )
    return f"({text})" if text.startswith("-") else text


def render_numpy(exported: Exported) -> dict[str, str]:
    """Renders the file of the target, by name."""
    printer, one, steps = NumpyPrinter(), exported.one, exported.steps
    used, signatures = needed_functions(exported), signatures_of(exported)
    texts = [
        printer.function(f"{name}_{m}", argument_names(signatures[name]), program)
        for m, programs in enumerate(exported.members)
        for name, program in programs.items()
        if name in used
    ]
    texts.append(printer.function("scale_inputs", ["u"], exported.inputs_scaled))
    if exported.combined is not None:
        texts.append(printer.function("combine", ["outputs"], exported.combined))
    a, b, c = tsitouras()
    scaler = one.system.scaler
    facts = {
        "version": __version__,
        "digest": exported.digest,
        "members": len(exported.members),
        "states": state_names(exported),
        "latent": one.latent,
        "channels": one.states,
        "inputs": one.inputs,
        "columns": exported.columns,
        "time": one.system.time,
        "units": exported.units,
        "combined": exported.combined is not None,
        "observes": exported.observes_inputs,
        "triggers": exported.has_triggers,
        "degree": max(exported.input_degrees, default=0),
        "degrees": exported.input_degrees,
        "rows": exported.rows_read,
        "past": exported.reads_past,
        "washout": one.start.washout,
        "steady": exported.is_steady,
        "turns": [turn or 0.0 for turn in exported.turns] if any(exported.turns) else None,
        "horizon": exported.horizon,
        "time_shift": float(scaler.time_shift),
        "time_scale": float(scaler.time_scale),
        "longest": "np.inf" if np.isinf(steps.longest) else repr(float(steps.longest)),
        "fewest": steps.fewest,
        "implicit": steps.method == "radau5",
        "a": (RADAU_A if steps.method == "radau5" else a).tolist(),
        "b": b.tolist(),
        "c": (RADAU_C if steps.method == "radau5" else c).tolist(),
        "constants": "\n".join(printer.definitions),
        "functions": texts,
        "names": sorted(used),
        "erf": printer.uses_erf,
    }
    return {"model.py": templates_with({"py": ascii}).get_template("model.py.txt").render(facts)}


def argument_names(signature: str) -> list[str]:
    inputs = signature.partition(" | ")[0]
    return [part.split()[-1].lstrip("*") for part in inputs.split(",")]
