"""Human-readable output of a fit: its equations, and its verdict and picture in a notebook."""

import base64
import html
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..discover.formulas import fill_in
from ..model.ensemble import Ensemble
from ..model.fields.field import AbstractVectorField
from ..model.neural_ode import NeuralODE
from ..model.observation import FormulaReadout, MeasuredStates
from ..plots.curves import png
from ..sysid.state_space import Readout

FREE_CONSTANT = (None, None)
# Coefficients for each state, by the exponents of states and inputs.
Coefficients = Mapping[tuple[int, ...], np.ndarray]
# Terms below this fraction of the largest term are omitted.
NEGLIGIBLE = 1e-9


def equations_of(model: NeuralODE | Ensemble) -> dict[str, str]:
    """Returns the right-hand sides of a model's field as text, by state, in the user's units; see `Fit.equations`."""
    field = model.typical.field
    if not isinstance(field, AbstractVectorField):
        return {}
    trained_apart = isinstance(model, Ensemble) and model.center is None
    terms = {} if trained_apart else field.coefficients()
    return polynomial_equations(model.typical, terms) if terms else field.texts()


def readout_of(model: NeuralODE | Ensemble) -> dict[str, str]:
    """Returns the channels that are no states as text, in the user's units; see `Fit.readout`."""
    one = model.typical
    if isinstance(one.observation, FormulaReadout):
        return dict(one.observation.formulas.texts)
    trained_apart = isinstance(model, Ensemble) and model.center is None
    readout = None if trained_apart or isinstance(one.observation, MeasuredStates) else Readout.of(one)
    if readout is None:
        return {}
    factors, names = readout.c, one.latent
    if readout.direct.any():
        factors, names = np.concatenate([factors, readout.direct], axis=1), (*names, *one.inputs)
    return {
        channel: sum_of_terms([*zip(row, (f"*{name}" for name in names), strict=True), (shift, "")])
        for channel, row, shift in zip(one.states, factors, readout.shift, strict=True)
    }


def equations_with_numbers(model: NeuralODE | Ensemble) -> dict[str, str]:
    """Returns the equations of `equations_of` with constants replaced by their fitted values, to four digits."""
    texts, constants = equations_of(model), model.constants()
    if not constants:
        return texts
    places = {name: f"{{{place}}}" for place, name in enumerate(constants)}
    name = re.compile(rf"\b({'|'.join(map(re.escape, places))})\b")
    values = tuple(constants.values())
    return {state: fill_in(name.sub(lambda match: places[match[0]], text), values) for state, text in texts.items()}


def polynomial_equations(model: NeuralODE, terms: Coefficients) -> dict[str, str]:
    """Returns the equations of a polynomial in scaled units; none if states or inputs are transformed to other scales.

    **Arguments:** `terms`: coefficients of shape `(state,)` by the exponents of states and inputs.
    """
    system, scaler = model.system, model.system.scaler
    if any(bounds != FREE_CONSTANT for bounds in (*scaler.bounds, *scaler.input_bounds)):
        return {}
    scales, shifts, rate = (
        np.concatenate([np.asarray(part, np.float64) for part in parts])
        for parts in (
            (scaler.state_scale, scaler.input_scale),
            (scaler.state_shift, scaler.input_shift),
            (scaler.state_scale / scaler.time_scale,),
        )
    )
    expanded = expand_about(shifts, {powers: rate * c / np.prod(scales**powers) for powers, c in terms.items()})
    largest = np.max([np.abs(c) * np.prod(scales**powers) for powers, c in expanded.items()], axis=0)
    names = (*system.states, *system.inputs)
    # By convention, the constant comes last.
    order = sorted(expanded, key=lambda powers: (sum(powers) == 0, sum(powers), [-power for power in powers]))
    return {
        state: sum_of_terms(
            (expanded[powers][place], product_of(names, powers))
            for powers in order
            if sum(powers) < 2 or abs(expanded[powers][place]) * np.prod(scales**powers) > NEGLIGIBLE * largest[place]
        )
        for place, state in enumerate(system.states)
    }


def product_of(names: Sequence[str], powers: Sequence[int]) -> str:
    """Formats powers of variables as text to append to a number, such as `*x*y^2`."""
    return "".join(
        f"*{name}" if power == 1 else f"*{name}^{power}" for name, power in zip(names, powers, strict=True) if power
    )


def expand_about(shifts: Float[np.ndarray, " variable"], terms: Coefficients) -> Coefficients:
    """Expands a polynomial in `x - shift` as one in `x`."""
    expansion: dict[tuple[int, ...], np.ndarray] = {}
    for exponents, coefficient in terms.items():
        for lower in itertools.product(*(range(exponent + 1) for exponent in exponents)):
            parts = zip(exponents, lower, shifts, strict=True)
            factor = math.prod(math.comb(high, low) * (-shift) ** (high - low) for high, low, shift in parts)
            expansion[lower] = expansion.get(lower, 0.0) + factor * coefficient
    return expansion


def sum_of_terms(terms: Iterable[tuple[float, str]]) -> str:
    """Formats a sum of products as text, such as `-2*x + 0.5*u - 1`; factors that are exactly zero are omitted."""
    factors = [(factor, product) for factor, product in terms if factor] or [(0.0, "")]
    text = " ".join(f"{'-' if factor < 0 else '+'} {abs(factor):.6g}{product}" for factor, product in factors)
    return text.removeprefix("+ ") if text.startswith("+") else f"-{text.removeprefix('- ')}"


def notebook_page(fit: Any) -> str:
    """Renders the verdict, constants, equations and picture of a fit as HTML."""
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in fit.constants.items())
    lines = [f"d{name}/dt = {text}" for name, text in fit.equations.items()]
    equations = "\n".join([*lines, *(f"{name} = {text}" for name, text in fit.readout.items())])
    parts = [f"<p>{html.escape(constants)}</p>"] if constants else []
    parts += [f"<pre>{html.escape(equations)}</pre>"] if equations else []
    if "train" in fit.data:
        picture = base64.b64encode(png(fit.plot())).decode()
        sentence = html.escape(fit.diagnose().sentence)
        parts = [
            f"<p><b>{sentence}</b></p>",
            *parts,
            f'<img style="max-width:100%" src="data:image/png;base64,{picture}">',
        ]
    return "\n".join(("<div>", *parts, f"<pre>{html.escape(repr(fit))}</pre>", "</div>"))
