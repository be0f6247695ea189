"""Whether two right-hand sides have the same terms, whatever their constants: by SymPy, on their simplest forms."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sympy


def has_same_terms(one: str, other: str, names: Sequence[str]) -> bool:
    """Whether two right-hand sides differ by constants alone once both are simplified.

    Each is written as one fraction without common factors, of which the monomials are compared, so that `1 + x**2` is
    no other denominator than `0.998 + x**2`. Logarithms and exponentials of products and sums are taken apart, and
    `cos(x)**2` is `1 - sin(x)**2`.

    **Arguments:** `one`, `other`: in the grammar of equations. `names`: of the states.
    """
    return monomials_of(one, names) == monomials_of(other, names)


def monomials_of(text: str, names: Sequence[str]) -> "tuple[set[sympy.Expr], set[sympy.Expr]]":
    """The monomials of a right-hand side's numerator and of its denominator."""
    import sympy

    symbols = {name: sympy.Symbol(name, real=True) for name in names}
    known = symbols | {"sigmoid": lambda x: 1 / (1 + sympy.exp(-x))}
    tree = sympy.expand(sympy.parse_expr(text.replace("^", "**"), local_dict=known), force=True)
    tree = tree.replace(is_power_of_cosine, with_sines)
    above, below = sympy.fraction(sympy.cancel(sympy.nsimplify(with_generators(tree), rational=True)))
    return tuple(
        {each.as_coeff_Mul()[1] for each in sympy.Add.make_args(sympy.expand(part))} for part in (above, below)
    )


def is_power_of_cosine(node: "sympy.Basic") -> bool:
    import sympy

    return bool(node.is_Pow and isinstance(node.base, sympy.cos) and node.exp.is_Integer and node.exp > 1)


def with_sines(power: "sympy.Pow") -> "sympy.Expr":
    import sympy

    half, rest = divmod(int(power.exp), 2)
    return sympy.expand((1 - sympy.sin(power.base.args[0]) ** 2) ** half * power.base**rest)


def with_generators(tree: "sympy.Expr") -> "sympy.Expr":
    """The expression with a symbol for each function and broken power, which says what it is but for its constants."""
    import sympy

    found: dict[sympy.Basic, sympy.Symbol] = {}

    def generator(node: sympy.Expr) -> sympy.Expr:
        if node.is_number:
            return node.evalf()
        if isinstance(node, sympy.exp):
            constant, rest = node.args[0].as_coeff_Mul()
            if constant < 0:
                return 1 / generator(sympy.exp(-node.args[0]))
            shape = f"exp({rest})"
        else:
            shape = str(node.replace(lambda each: each.is_Float, lambda _: sympy.Symbol("constant")))
        if node not in found:
            alike = sum(each.name.startswith(f"{shape} ") for each in found.values())
            found[node] = sympy.Symbol(f"{shape} {alike}")
        return found[node]

    return tree.replace(lambda node: node.is_Function or (node.is_Pow and not node.exp.is_Integer), generator)
