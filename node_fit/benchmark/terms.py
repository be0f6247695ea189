"""Whether two right-hand sides have the same terms, whatever their constants: by SymPy, on their simplest forms."""

from collections.abc import Sequence
from typing import Any

# SymPy's expressions are Any: an extra installs it, and its own hints are too wide to check against.
Monomials = tuple[frozenset[Any], frozenset[Any]]


def has_same_terms(one: str, other: str, names: Sequence[str]) -> bool:
    """Whether two right-hand sides differ by constants alone once both are simplified.

    Each is written as one fraction without common factors, of which the monomials are compared, so that `1 + x**2` is
    no other denominator than `0.998 + x**2`. Logarithms and exponentials of products and sums are taken apart, and
    `cos(x)**2` is `1 - sin(x)**2`.

    **Arguments:** `one`, `other`: in the grammar of equations. `names`: of the states.
    """
    return monomials_of(one, names) == monomials_of(other, names)


def monomials_of(text: str, names: Sequence[str]) -> Monomials:
    """The monomials of a right-hand side's numerator and of its denominator."""
    import sympy

    def monomials(part: Any) -> frozenset[Any]:
        return frozenset(each.as_coeff_Mul()[1] for each in sympy.Add.make_args(sympy.expand(part)))

    known = {name: sympy.Symbol(name, real=True) for name in names} | {"sigmoid": lambda x: 1 / (1 + sympy.exp(-x))}
    tree = sympy.expand(sympy.parse_expr(text.replace("^", "**"), local_dict=known), force=True)
    tree = with_generators(tree.replace(is_power_of_cosine, to_sines))
    above, below = sympy.fraction(sympy.cancel(sympy.nsimplify(tree, rational=True)))
    return monomials(above), monomials(below)


def is_power_of_cosine(node: Any) -> bool:
    import sympy

    return bool(node.is_Pow and isinstance(node.base, sympy.cos) and node.exp.is_Integer and node.exp > 1)


def to_sines(power: Any) -> Any:
    import sympy

    half, rest = divmod(int(power.exp), 2)
    return sympy.expand((1 - sympy.sin(power.base.args[0]) ** 2) ** half * power.base**rest)


def with_generators(tree: Any) -> Any:
    """The expression with a symbol for each function and broken power, which says what it is but for its constants."""
    import sympy

    found: dict[Any, Any] = {}

    def generator(node: Any) -> Any:
        if node.is_number:
            return node.evalf()
        argument: Any = node.args[0]
        if isinstance(node, sympy.exp):
            constant, rest = argument.as_coeff_Mul()
            if constant < 0:
                return 1 / generator(sympy.exp(-argument))
            shape = f"exp({rest})"
        else:
            shape = str(node.replace(lambda each: each.is_Float, lambda _: sympy.Symbol("constant")))
        if node not in found:
            alike = sum(each.name.startswith(f"{shape} ") for each in found.values())
            found[node] = sympy.Symbol(f"{shape} {alike}")
        return found[node]

    return tree.replace(lambda node: node.is_Function or (node.is_Pow and not node.exp.is_Integer), generator)
