"""Equations of motion as text, beside Lagrange's equations by automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.discover.formulas import read_tape
from node_fit.mechanics.structure import Mechanism, forms

NAMES = {
    1: (("q",), ("v",), ("u",)),
    2: (("a", "b"), ("x", "y"), ("u", None)),
    3: (("a", "b", "c"), ("x", "y", "z"), ("u", "w", None)),
}
WAVES = {"cos": jnp.cos, "sin": jnp.sin, "": lambda angle: 1.0}


def rates_by_lagrange(mechanism: Mechanism, constants, q, v, u):
    """The rates of velocities, from the energies of the terms alone."""
    values = dict(zip(mechanism.constants, constants, strict=True))

    def kinetic(q, v):
        parts = []
        for name, term in zip(mechanism.constants, mechanism.masses, strict=False):
            half = 0.5 if term.left == term.right else 1.0
            left, right, angle = (jnp.array(each, float) for each in (term.left, term.right, term.angle))
            parts.append(half * values[name] * WAVES[term.wave](angle @ q) * (left @ v) * (right @ v))
        return sum(parts)

    names = [*mechanism.coordinates, *mechanism.velocities]
    widths = mechanism.widths
    texts = [term.text.format(width=values[widths[term]] if term in widths else "") for term in mechanism.rest]
    forces = read_tape(texts, names)([*np.asarray(q), *np.asarray(v)])
    given = mechanism.constants[len(mechanism.masses) :]
    rest = sum(
        values[name] * np.array(term.direction) * force
        for name, term, force in zip(given, mechanism.rest, forces, strict=False)
    )
    mass = jax.hessian(kinetic, argnums=1)(q, v)
    changing = jax.jacfwd(lambda q: jax.grad(kinetic, argnums=1)(q, v))(q) @ v
    return jnp.linalg.solve(mass, u + jax.grad(kinetic)(q, v) - changing - rest)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_equations_are_those_of_lagrange(count: int):
    positions, velocities, forces = NAMES[count]
    draw = np.random.default_rng(count)
    for mechanism in forms(positions, velocities, forces, ()):
        # Masses of a positive matrix: those of coordinates are larger than what couples them.
        small = draw.uniform(0.05, 0.15, len(mechanism.constants))
        own = [at for at, term in enumerate(mechanism.masses) if term.left == term.right]
        small[own] += 2.0
        q, v = draw.normal(size=(2, count))
        u = np.array([0.0 if name is None else draw.normal() for name in forces])
        inputs = [name for name in forces if name is not None]
        tape = read_tape([*mechanism.equations().values()], [*positions, *velocities, *inputs, *mechanism.constants])
        found = tape([*q, *v, *[each for each, name in zip(u, forces, strict=True) if name is not None], *small])
        with jax.enable_x64(True):
            wanted = rates_by_lagrange(mechanism, small, jnp.array(q), jnp.array(v), jnp.array(u))
        np.testing.assert_allclose(found, [*v, *wanted], rtol=1e-9, err_msg=mechanism.title)


def test_constants_have_names_that_nothing_else_has():
    mechanism = next(forms(("q",), ("m1",), ("k1",), {"q", "m1", "k1", "t"}))
    assert "m1_" in mechanism.constants and "k1_" in mechanism.constants and len(set(mechanism.constants)) == 7


def test_a_term_of_dry_friction_goes_with_its_velocity():
    mechanism = next(forms(("q",), ("v",), ("u",), ()))
    place = next(place for place, _ in mechanism.dry)
    shorter = mechanism.without(place)
    assert not shorter.dry and len(shorter.constants) == len(mechanism.constants) - 2
    assert shorter.equations()["v"] == "(u - k1*q - c1*q^3 - d1*v - b1)/(m1)"


def test_mirror_symmetry_is_told_by_what_is_left():
    tilted = [each for each in forms(("q",), ("v",), ("u",), ()) if each.is_tilted]
    assert tilted and all("without mirror symmetry" in each.title for each in tilted)
    for mechanism in tilted:
        while mechanism.is_tilted:
            odd = [
                at
                for at, (term, _) in enumerate(mechanism.owners)
                if "cos" in getattr(term, "text", getattr(term, "wave", ""))
            ]
            mechanism = mechanism.without(odd[0])
        assert "without" not in mechanism.title
