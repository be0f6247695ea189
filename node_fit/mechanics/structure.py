"""Lagrangian mechanisms as sums of terms, and their equations of motion as text.

A mechanism with coordinates q, velocities v and forces u obeys d/dt (M(q) v) - d/dq (v' M(q) v/2) + r(q, v) = u
(Goldstein: Classical Mechanics, section 1.4). The mass matrix M is a sum of products of two rates with a function of
the coordinates, and r, of potentials and friction, a sum of functions with directions. Each summand has one constant.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

# Innermost parentheses.
INNERMOST = re.compile(r"\([^()]*\)")
# Integer factors of the coordinates in the angle of a sine or cosine, or of the velocities in a rate.
Factors = tuple[int, ...]


@dataclass(frozen=True)
class MassTerm:
    """A part `wave(angle . q) (left . v) (right . v)` of the kinetic energy; `wave` is `cos`, `sin`, or empty for 1."""

    left: Factors
    right: Factors
    angle: Factors
    wave: str = ""

    def mass(self, row: int, column: int) -> float:
        """Returns its factor in an entry of the mass matrix, without the wave."""
        both = self.left[row] * self.right[column] + self.left[column] * self.right[row]
        return both / 2 if self.left == self.right else both

    def bend(self, row: int) -> dict[tuple[int, int], float]:
        """Returns the factors of velocity products in dM/dt v - d/dq (v' M v/2), without the wave's derivative."""
        factors: dict[tuple[int, int], float] = {}
        count = range(len(self.left))
        for one, other in itertools.product(count, count):
            contribution = self.angle[one] * self.mass(row, other) - self.angle[row] * self.mass(one, other) / 2
            place = (min(one, other), max(one, other))
            factors[place] = factors.get(place, 0.0) + contribution
        return {place: factor for place, factor in factors.items() if factor}


@dataclass(frozen=True)
class ForceTerm:
    """A force that is subtracted from the applied forces.

    **Arguments:** `letter`: first letter of the name of its constant. `direction`: its direction. `text`: its formula,
    in which `{width}` is the velocity at which dry friction sets in.
    """

    letter: str
    direction: Factors
    text: str

    @property
    def has_width(self) -> bool:
        return "{width}" in self.text


@dataclass(frozen=True)
class Mechanism:
    """The terms of a mechanism.

    **Arguments:** `coordinates`, `velocities`: names. `forces`: the input that acts on each coordinate, or None.
    `masses`, `rest`: the terms. `kind`: description of the mechanism. `taken`: names that constants can't have.
    """

    coordinates: tuple[str, ...]
    velocities: tuple[str, ...]
    forces: tuple[str | None, ...]
    masses: tuple[MassTerm, ...]
    rest: tuple[ForceTerm, ...]
    kind: str
    taken: frozenset[str] = frozenset()

    @property
    def is_tilted(self) -> bool:
        """Whether it lacks mirror symmetry, that is, its mirror image moves differently."""
        return any(term.wave == "sin" for term in self.masses) or any("cos" in term.text for term in self.rest)

    @property
    def title(self) -> str:
        return f"{self.kind} without mirror symmetry" if self.is_tilted else self.kind

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.coordinates)

    @property
    def terms(self) -> int:
        """Number of terms; every term has its own constant."""
        return len(self.masses) + len(self.rest)

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Names of the constants: of masses, of other terms, and of the velocities at which dry friction sets in."""
        letters = ["m"] * len(self.masses) + [term.letter for term in self.rest]
        letters += ["w"] * sum(term.has_width for term in self.rest)
        counts: dict[str, int] = {}
        names: list[str] = []
        for letter in letters:
            counts[letter] = counts.get(letter, 0) + 1
            name = f"{letter}{counts[letter]}"
            names.append(f"{name}_" if name in self.taken else name)
        return tuple(names)

    @property
    def owners(self) -> "list[tuple[MassTerm | ForceTerm, bool]]":
        """The term of each constant, and whether the constant is the velocity at which dry friction sets in."""
        terms = [*self.masses, *self.rest]
        return [*((term, False) for term in terms), *((term, True) for term in self.widths)]

    @property
    def widths(self) -> dict[ForceTerm, str]:
        """Name of the width of each dry-friction term."""
        dry = [term for term in self.rest if term.has_width]
        return dict(zip(dry, self.constants[len(self.masses) + len(self.rest) :], strict=True))

    @property
    def dry(self) -> list[tuple[int, str]]:
        """Index of the constant of each dry-friction term, and the name of its width."""
        widths = self.widths
        count = len(self.masses)
        return [(count + place, widths[term]) for place, term in enumerate(self.rest) if term in widths]

    def without(self, place: int) -> "Mechanism":
        """Returns the mechanism without the term at an index into `masses` followed by `rest`."""
        count = len(self.masses)
        if place < count:
            return replace(self, masses=self.masses[:place] + self.masses[place + 1 :])
        return replace(self, rest=self.rest[: place - count] + self.rest[place - count + 1 :])

    def momenta(self, term: MassTerm) -> list[str]:
        """Returns the derivatives of a kinetic-energy term by the velocities."""
        wave = wave_of(term.wave, term.angle, self.coordinates)
        rows = [{column: term.mass(row, column) for column in range(self.size)} for row in range(self.size)]
        return [
            scale_text(sum_text({self.velocities[place]: mass for place, mass in row.items()}), wave) for row in rows
        ]

    def tensions(self, term: MassTerm) -> list[str]:
        """Returns minus the derivatives of a kinetic-energy term by the coordinates."""
        slope = wave_slope(term.wave, term.angle, self.coordinates)
        energy: dict[str, float] = {}
        for one, other in itertools.product(range(self.size), range(self.size)):
            product = f"{self.velocities[min(one, other)]}*{self.velocities[max(one, other)]}"
            energy[product] = energy.get(product, 0.0) + term.mass(one, other) / 2
        return [
            scale_text(sum_text({product: -factor * share for product, share in energy.items()}), slope)
            for factor in term.angle
        ]

    def equations(self) -> dict[str, str]:
        """Returns the rate of each coordinate and velocity, in the grammar of equations."""
        names = self.constants
        matrix = [[self.entry(row, column) for column in range(self.size)] for row in range(self.size)]
        loads = [self.load(row, names) for row in range(self.size)]
        rates = dict(zip(self.coordinates, self.velocities, strict=True))
        return rates | dict(zip(self.velocities, solve_linear(matrix, loads), strict=True))

    def entry(self, row: int, column: int) -> str:
        """Returns an entry of the mass matrix."""
        summands = {
            scale_text(name, wave_of(term.wave, term.angle, self.coordinates)): term.mass(row, column)
            for name, term in zip(self.constants, self.masses, strict=False)
        }
        return sum_text(summands)

    def load(self, row: int, names: Sequence[str]) -> str:
        """Returns the force that moves a coordinate, with the products of velocities that the mass matrix causes."""
        summands: dict[str, float] = {} if self.forces[row] is None else {str(self.forces[row]): 1.0}
        for name, term in zip(names, self.masses, strict=False):
            slope = wave_slope(term.wave, term.angle, self.coordinates)
            for (one, other), factor in term.bend(row).items():
                squares = (
                    f"{self.velocities[one]}^2" if one == other else f"{self.velocities[one]}*{self.velocities[other]}"
                )
                sign, wave = (-1.0, slope[1:]) if slope.startswith("-") else (1.0, slope)
                text = f"{name}*{wave}*{squares}"
                summands[text] = summands.get(text, 0.0) - sign * factor
        widths = self.widths
        for name, term in zip(names[len(self.masses) :], self.rest, strict=False):
            text = name if term.text == "1" else f"{name}*{term.text.format(width=widths.get(term))}"
            summands[text] = summands.get(text, 0.0) - term.direction[row]
        return sum_text(summands)


def linear_text(factors: Sequence[float], names: Sequence[str]) -> str:
    return sum_text(dict(zip(names, map(float, factors), strict=True)))


def wave_of(wave: str, angle: Factors, names: Sequence[str]) -> str:
    return f"{wave}({linear_text(angle, names)})" if wave else ""


def wave_slope(wave: str, angle: Factors, names: Sequence[str]) -> str:
    """Returns the derivative of a wave by its angle."""
    derivative, sign = {"cos": ("sin", "-"), "sin": ("cos", ""), "": ("", "")}[wave]
    return sign + wave_of(derivative, angle, names)


def scale_text(text: str, factor: str) -> str:
    """Writes a product of a text with a factor, which is empty for 1."""
    if not factor or text == "0":
        return text
    return f"{factor}*{text}" if has_one_term(text) else f"{factor}*({text})"


def has_one_term(text: str) -> bool:
    """Whether a text contains no sum outside of parentheses."""
    inside = INNERMOST.sub("", text)
    while inside != text:
        text, inside = inside, INNERMOST.sub("", inside)
    return " + " not in text and " - " not in text and not text.startswith("-")


def sum_text(parts: dict[str, float]) -> str:
    """Writes a sum of texts with factors."""
    written = ""
    for text, factor in parts.items():
        if factor == 0:
            continue
        size = text if abs(factor) == 1 else f"{abs(factor):g}*{text}"
        if not written:
            written = f"-{size}" if factor < 0 else size
        else:
            written += f" - {size}" if factor < 0 else f" + {size}"
    return written or "0"


def multiply_texts(*texts: str) -> str:
    """Writes a product of texts; empty if one of them is 0."""
    if "0" in texts:
        return ""
    return "*".join(text if has_one_term(text) else f"({text})" for text in texts)


def solve_linear(matrix: Sequence[Sequence[str]], right: Sequence[str]) -> list[str]:
    """Solves up to three linear equations of texts with Cramer's rule."""
    if len(right) == 1:
        return [divide_texts(right[0], matrix[0][0])]
    if is_diagonal(matrix):
        return [divide_texts(side, matrix[place][place]) for place, side in enumerate(right)]
    denominator = determinant(matrix)
    rows = range(len(right))
    return [
        divide_texts(
            determinant(
                [[right[row] if column == unknown else matrix[row][column] for column in rows] for row in rows]
            ),
            denominator,
        )
        for unknown in rows
    ]


def is_diagonal(matrix: Sequence[Sequence[str]]) -> bool:
    return all(text == "0" for row, texts in enumerate(matrix) for column, text in enumerate(texts) if row != column)


def divide_texts(text: str, by: str) -> str:
    above = text if has_one_term(text) else f"({text})"
    return "0" if text == "0" else f"{above}/({by})"


def determinant(matrix: Sequence[Sequence[str]]) -> str:
    products: dict[str, float] = {}
    for order in itertools.permutations(range(len(matrix))):
        text = multiply_texts(*(matrix[row][column] for row, column in enumerate(order)))
        if text:
            products[text] = products.get(text, 0.0) + parity(order)
    return sum_text(products)


def parity(order: Sequence[int]) -> int:
    return round(float(np.linalg.det(np.eye(len(order))[list(order)])))


def unit_factors(at: int, count: int) -> Factors:
    return tuple(int(place == at) for place in range(count))


def subtract(one: Factors, other: Factors) -> Factors:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def orient_angle(angle: Factors) -> Factors:
    """Returns the angle or its opposite, so that the first nonzero factor is positive."""
    first = next((factor for factor in angle if factor), 1)
    return angle if first > 0 else tuple(-factor for factor in angle)


def constant_masses(count: int, pairs: Collection[tuple[int, int]]) -> list[MassTerm]:
    """Returns inertias of coordinates, and their couplings."""
    none = (0,) * count
    return [MassTerm(unit_factors(one, count), unit_factors(other, count), none) for one, other in pairs]


def friction(velocities: Sequence[str], *, coupled: bool = False) -> list[ForceTerm]:
    """Returns viscous and dry friction of each coordinate, and viscous friction between neighbours."""
    count = len(velocities)
    terms = [ForceTerm("d", unit_factors(at, count), name) for at, name in enumerate(velocities)]
    terms += [ForceTerm("f", unit_factors(at, count), f"tanh({name}/{{width}})") for at, name in enumerate(velocities)]
    if coupled:
        terms += [
            ForceTerm("d", subtract(unit_factors(at, count), unit_factors(at + 1, count)), f"({one} - {other})")
            for at, (one, other) in enumerate(itertools.pairwise(velocities))
        ]
    return terms


def potential_of(angle: Factors, names: Sequence[str], waves: Sequence[str]) -> list[ForceTerm]:
    """Returns the forces of the potentials `-cos` and `sin` of an angle."""
    texts = {"cos": "sin", "sin": "cos"}
    return [ForceTerm("g", angle, wave_of(texts[wave], angle, names)) for wave in waves]


def offsets(count: int, which: Sequence[int]) -> list[ForceTerm]:
    """Returns constant forces on some coordinates."""
    return [ForceTerm("b", unit_factors(at, count), "1") for at in which]


def springs(names: Sequence[str], which: Sequence[int], *, coupled: bool) -> list[ForceTerm]:
    """Returns springs of some coordinates, and between neighbours."""
    count = len(names)
    terms = [ForceTerm("k", unit_factors(at, count), names[at]) for at in which]
    if coupled:
        terms += [
            ForceTerm(
                "k", subtract(unit_factors(at, count), unit_factors(at + 1, count)), f"({names[at]} - {names[at + 1]})"
            )
            for at in range(count - 1)
        ]
    return terms


def forms(
    coordinates: Sequence[str], velocities: Sequence[str], forces: Sequence[str | None], taken: Collection[str]
) -> Iterator[Mechanism]:
    """Yields the mechanisms to try.

    These are masses on springs, chains of links with relative or absolute angles, and pendulums on bodies that move
    along a line; those that turn come with and without mirror symmetry.
    """
    count, names, rates = len(coordinates), tuple(coordinates), tuple(velocities)
    every = range(count)
    pairs = [(one, other) for one in every for other in range(one, count)]

    def make(kind: str, masses: Sequence[MassTerm], rest: Sequence[ForceTerm]) -> Mechanism:
        return Mechanism(names, rates, tuple(forces), tuple(masses), tuple(rest), kind, frozenset(taken))

    cubic = [ForceTerm("c", unit_factors(at, count), f"{name}^3") for at, name in enumerate(names)]
    rest = [*springs(names, every, coupled=True), *cubic, *friction(rates, coupled=True), *offsets(count, every)]
    yield make("masses on springs", constant_masses(count, pairs), rest)
    for mirrored in (True, False):
        waves = ("cos",) if mirrored else ("cos", "sin")
        relative = [tuple(int(at <= link) for at in every) for link in every]
        absolute = [unit_factors(at, count) for at in every]
        kinds = {"relative": relative, "absolute": absolute} if count > 1 else {"absolute": absolute}
        for kind, links in kinds.items():
            turns = chain_masses(links, waves)
            gravity = [term for link in links for term in potential_of(link, names, waves)]
            more = [] if mirrored else offsets(count, every)
            name = f"a chain of {count} links with {kind} angles" if count > 1 else "a pendulum"
            diagonal = pairs if kind == "relative" else [(at, at) for at in every]
            yield make(name, [*constant_masses(count, diagonal), *turns], [*gravity, *friction(rates), *more])
        for slides in (range(split) for split in range(1, count)):
            turning = [at for at in every if at not in slides]
            links = [unit_factors(at, count) for at in turning]
            masses = [*constant_masses(count, [(at, at) for at in every]), *chain_masses(links, waves)]
            masses += [
                MassTerm(unit_factors(slide, count), link, link, wave)
                for slide in slides
                for link in links
                for wave in waves
            ]
            gravity = [term for link in links for term in potential_of(link, names, waves)]
            held = [*springs(names, slides, coupled=False), *offsets(count, slides)]
            yield make("pendulums on a cart", masses, [*gravity, *held, *friction(rates)])


def chain_masses(links: Sequence[Factors], waves: Sequence[str]) -> list[MassTerm]:
    """Returns the couplings of links, which depend on the angles between them."""
    return [
        MassTerm(one, other, orient_angle(subtract(one, other)), wave)
        for at, one in enumerate(links) for other in links[at + 1 :] for wave in waves
    ]  # fmt: skip
