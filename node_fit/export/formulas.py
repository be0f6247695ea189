"""The target `sympy`: known equations as formulas of SymPy and as LaTeX."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..expressions.writing import write_sympy
from ..model.fields.equations import normalize, parse
from ..model.fields.known import Known
from ..model.observation import MeasuredStates
from ..runtime.placement import scope
from ..runtime.serialization import __version__
from ..solver.problem import polynomials
from .c import templates_with
from .functions import Exported
from .latex import render_latex
from .trials import CheckRecord, load_module, record_starts

# Returns the time derivatives of the states at a time, states and inputs.
Rates = Callable[[float, np.ndarray, np.ndarray], Sequence[float]]


def refusals_of_formulas(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """Lists features of a model that formulas don't support."""
    refusals: list[str] = []
    field = exported.one.field
    if not isinstance(field, Known):
        refusals.append(f"a field of the class {type(field).__name__}; only known equations are formulas")
    elif field.constants.local:
        by = dict.fromkeys(local.by for local in field.constants.local)
        refusals.append(f"constants that differ by {', '.join(by)}")
    if not isinstance(exported.one.observation, MeasuredStates):
        refusals.append("channels that are no states")
    if len(exported.members) > 1:
        refusals.append("an ensemble")
    if exported.has_triggers:
        refusals.append("triggers, at which its states jump")
    return refusals


def render_formulas(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, str]:
    """Renders the module of formulas and its LaTeX."""
    one, field = exported.one, exported.one.field
    assert isinstance(field, Known)
    constants = field.constants.as_dict()
    names = [*one.latent, *one.inputs, one.system.time, *constants]
    symbols = {normalize(name): f"SYMBOLS[{name!a}]" for name in names}
    rates = [write_sympy(parse(state, text), symbols) for state, text in equations_by_state(field, one.latent)]
    facts = {
        "version": __version__,
        "digest": exported.digest,
        "names": names,
        "states": one.latent,
        "inputs": one.inputs,
        "time": one.system.time,
        "constants": constants,
        "rates": rates,
    }
    module = templates_with({"py": ascii}).get_template("formulas.py.txt").render(facts)
    return {"formulas.py": module, "formulas.tex": latex(module, exported)}


def equations_by_state(field: Known, states: Sequence[str]) -> list[tuple[str, str]]:
    texts = dict(field.equations.texts)
    return [(state, texts[state]) for state in states]


def latex(module: str, exported: Exported) -> str:
    """Renders the equations in LaTeX; see `render_latex`.

    **Arguments:** `module`: the formulas, as written above from a checked syntax tree.
    """
    space: dict[str, Any] = {}
    exec(module, space)
    field = exported.one.field
    assert isinstance(field, Known)
    symbols, time = space["SYMBOLS"], space["TIME"]
    constants = field.constants.as_dict()
    return render_latex(space["RATES"], symbols, time, constants, exported.units, exported.confidence, __version__)


def run_formulas(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the formulas, evaluated by NumPy and solved by SciPy; the channels are states."""
    return simulate_rates(load_module(folder / "formulas.py").as_function(), exported, trials)


def simulate_rates(rates: Rates, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from rates for some records, solved by SciPy; the channels are states.

    **Arguments:** `rates`: the time derivatives of the states at a time, states and inputs in the user's units.
    """
    from scipy.integrate import solve_ivp

    count = len(exported.one.states)
    method, kind = "Radau" if exported.steps.method == "radau5" else "DOP853", exported.one.solver.interpolation
    predictions: list[np.ndarray] = []
    for trial, (first_row, y) in zip(trials, record_starts(exported, trials), strict=True):
        rows = np.full((len(trial.t), count), np.nan)
        with scope("x64"):
            inputs = np.stack([np.asarray(part)[0] for part in polynomials(trial.t[None], trial.inputs[None], kind)])
        for row in range(first_row, len(trial.t)):
            rows[row] = y[:count]
            if row + 1 == len(trial.t):
                break
            if trial.factor is not None and trial.shift is not None:
                y = trial.factor[row] * y + trial.shift[row]
            ends, powers = trial.t[row : row + 2], inputs[:, row]

            def field(t: float, y: np.ndarray, ends: np.ndarray = ends, powers: np.ndarray = powers) -> Sequence[float]:
                share = (t - ends[0]) / (ends[1] - ends[0])
                return rates(t, y, share ** np.arange(len(powers)) @ powers)

            size = 1e-12 * np.maximum(np.abs(y), 1e-9)
            y = solve_ivp(field, (float(ends[0]), float(ends[1])), y, method, ends[1:], rtol=1e-10, atol=size).y[:, -1]
        predictions.append(rows)
    return predictions
