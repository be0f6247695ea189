"""Arguments for each operation of the table."""

from node_fit.expressions.operations import OPERATIONS

# Arguments at which operations have a value, where those of most do not serve.
AT = {
    "arcsin": [0.3], "arccos": [0.3], "arctanh": [0.3], "arcsech": [0.3], "arcsec": [1.7], "arccsc": [1.7],
    "arccosh": [1.7], "arccoth": [1.7], "root": [3.0, 0.7], "remainder": [-7.0, 2.5], "quotient": [-7.0, 2.5],
    "piecewise": [0.5, False, 0.7, True, 2.0], "log": [0.7, 3.0], "factorial": [4.0], "sign": [-0.4], "floor": [-0.4],
    "ceil": [-0.4], "+": [1.0, 2.0, 4.0], "*": [2.0, 3.0, 5.0], "minimum": [2.0, -1.0, 4.0], "maximum": [2.0, 9.0, 4.0],
}  # fmt: skip


def arguments_for(name: str) -> list[float | bool]:
    entry = OPERATIONS[name]
    if entry.takes_conditions:
        return [True, False][: max(entry.fewest, min(entry.most, 2))]
    return AT.get(name, [0.7, 0.4][: max(entry.fewest, 1)])
