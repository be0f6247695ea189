"""What people read of a fit: its equations, and its verdict and picture in a notebook."""

import base64
import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..model.ensemble import Ensemble
from ..model.fields.hybrid import Hybrid
from ..model.fields.known import Known
from ..model.fields.linear import Linear
from ..model.neural_ode import NeuralODE
from ..plots.style import png

FREE = (None, None)


def equations_of(model: NeuralODE | Ensemble) -> dict[str, str]:
    """The right-hand sides of a model's field as text, by state, in the user's units; see `Fit.equations`."""
    field = model.typical.field
    if isinstance(field, Known):
        return dict(field.equations.texts)
    if isinstance(field, Hybrid):
        states, network = field.known.system.states, f"network({', '.join(field.sees)})"
        added = {states[state] for state in field.rest}
        return {name: f"{text} + {network}" if name in added else text for name, text in field.known.equations.texts}
    if isinstance(field, Linear) and isinstance(model, NeuralODE):
        return linear_equations(model, field)
    return {}


def linear_equations(model: NeuralODE, field: Linear) -> dict[str, str]:
    """The equations of a linear field; none where states or inputs are seen on another scale."""
    system, scaler = model.system, model.system.scaler
    if any(bounds != FREE for bounds in (*scaler.bounds, *scaler.input_bounds)):
        return {}
    weight, bias, *scales = (
        np.asarray(each, np.float64)
        for each in (
            field.layer.weight, field.layer.bias, scaler.state_scale, scaler.state_shift, scaler.input_scale,
            scaler.input_shift, scaler.time_scale,
        )
    )  # fmt: skip
    state_scale, state_shift, input_scale, input_shift, time_scale = scales
    rate = state_scale / time_scale
    factors = rate[:, None] * weight / np.concatenate([state_scale, input_scale])
    constant = rate * bias - factors @ np.concatenate([state_shift, input_shift])
    names = (*system.states, *system.inputs)
    return {
        state: linear_sum([*row, shift], [*(f"*{name}" for name in names), ""])
        for state, row, shift in zip(system.states, factors, constant, strict=True)
    }


def linear_sum(factors: Sequence[float], names: Sequence[str]) -> str:
    """A sum of products as text, such as `-2*x + 0.5*u - 1`."""
    terms = (
        f"{'-' if factor < 0 else '+'} {abs(factor):.6g}{name}" for factor, name in zip(factors, names, strict=True)
    )
    text = " ".join(terms)
    return text.removeprefix("+ ") if text.startswith("+") else f"-{text.removeprefix('- ')}"


def notebook_page(fit: Any) -> str:
    """The verdict, constants, equations and picture of a fit as HTML."""
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in fit.constants.items())
    equations = "\n".join(f"d{name}/dt = {text}" for name, text in fit.equations.items())
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
