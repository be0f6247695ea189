"""Reads a fitted model's vector field: its rates along its own trajectories, or the part that its network adds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.dataset import Dataset
from ..data.domains import Turns, near_columns
from ..data.inputs import are_held
from ..model.fields.equations import normalize
from ..model.fields.known import Hybrid
from ..model.neural_ode import NeuralODE
from ..model.observation import MeasuredStates
from ..runtime.placement import scope_of
from .balance import Balance
from .smoothing import Smoothed, spline_through, spread_of

# Maximum deviation of a rate from a multiple of a hidden state, relative to its largest value: float32 rounding.
SAME_BUT_UNIT = 1e-4
Reader = Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class Reading:
    """Records of a model: its trajectories, the values of the functions to find along them, and the measurements.

    **Arguments:** `records`: one per trajectory. `sees`: names that the functions depend on. `balance`: places of the
    functions in known equations; None if the whole field is unknown.
    """

    records: list[Smoothed]
    sees: Sequence[str]
    balance: Balance | None


def read_field(model: NeuralODE, data: Dataset) -> Reading:
    """Reads a model's field along its own trajectories, at the rows of the data.

    **Raises:** `ValueError` if channels are a readout of states, equations contain the time or triggers, or the
    model can't simulate a trajectory.
    """
    if not isinstance(model.observation, MeasuredStates):
        raise ValueError("discover needs a model whose channels are states; fit it with observation=measured.")
    balance, read, sees = None, model.vector_field, (*model.latent, *model.inputs)
    if isinstance(model.field, Hybrid):
        balance, read, sees = balance_of(model.field), network_of(model.field), model.field.sees
    if model.system.time in sees:
        raise ValueError(f"the network sees the time {model.system.time!r}; discover needs one that does not.")
    simulated = model.bands(data)
    values = simulated.ys if simulated.hidden is None else np.concatenate([simulated.ys, simulated.hidden], axis=2)
    records: list[Smoothed] = []
    with scope_of(model):
        rates = jax.jit(jax.vmap(read))
        for row, (name, length) in enumerate(zip(data.trajectories, data.lengths, strict=True)):
            finite_rows = np.flatnonzero(np.isfinite(values[row, :length].sum(axis=1)))
            rows = slice(int(finite_rows[0]) if finite_rows.size else 0, int(length))  # The trajectory can start later.
            if finite_rows.size < rows.stop - rows.start:
                raise ValueError(f"the model can't simulate the trajectory {name!r}, so its field can't be read there.")
            t, ys, us = data.ts[row, rows], values[row, rows], data.us[row, rows]
            read_there = np.asarray(rates(*(jnp.asarray(columns, float) for columns in (t, ys, us))), np.float64)
            record = record_of(t, ys, us, read_there, data.ys[row, rows], model.scaler.turns)
            records.append(replace(record, held=are_held(model.solver.interpolation, us.shape[1])))
    return Reading(records, sees, balance) if balance else with_units(Reading(records, sees, None), model.latent)


def with_units(reading: Reading, states: Sequence[str]) -> Reading:
    """Rescales hidden states that are multiples of a rate, such as velocities, to equal this rate.

    Measurements do not determine the unit of hidden states. After rescaling, these rates are known equations.
    """
    records = reading.records
    measured = np.isfinite(records[0].raw).any(axis=0)
    rates = np.concatenate([record.rates for record in records])
    values = np.concatenate([record.values for record in records])[:, : len(states)]
    units = np.ones(len(states))
    known: dict[int, int] = {}
    for hidden in np.flatnonzero(~measured):
        for state in np.flatnonzero(measured):
            unit = float(rates[:, state] @ values[:, hidden] / max(values[:, hidden] @ values[:, hidden], 1e-300))
            off = np.abs(rates[:, state] - unit * values[:, hidden]).max()
            if unit and off < SAME_BUT_UNIT * np.abs(rates[:, state]).max() and hidden not in known.values():
                known[int(state)], units[hidden] = int(hidden), unit
    if not known:
        return reading
    sought = [at for at in range(len(states)) if at not in known]
    names = {at: f"rate{at}_" for at in sought}
    texts = tuple(names[at] if at in names else str(states[known[at]]) for at in range(len(states)))
    balance = Balance(tuple(states[at] for at in sought), tuple(names.values()), texts)
    return Reading([in_units(record, units, sought) for record in records], reading.sees, balance)


def in_units(record: Smoothed, units: np.ndarray, sought: Sequence[int]) -> Smoothed:
    """Multiplies the states of a record by units, and keeps the rates of some states."""
    values = record.values.copy()
    values[:, : len(units)] *= units
    splines = tuple(spline_through(record.t, column) for column in values[:, : len(units)].T)
    return replace(record, values=values, rates=(record.rates * units)[:, sought], splines=splines)


def record_of(
    t: np.ndarray, ys: np.ndarray, us: np.ndarray, rates: np.ndarray, measured: np.ndarray, turns: Turns
) -> Smoothed:
    """Returns a record whose smooth values are a model's states; the first states were measured."""
    count = measured.shape[1]
    raw, spread, noise = np.full(ys.shape, np.nan), np.ones(ys.shape), 0.0
    raw[:, :count] = near_columns(measured, ys[:, :count], turns)
    for state in range(count):
        known = np.isfinite(raw[:, state])
        scale = float(raw[known, state].std()) or 1.0
        residuals, smooth = (raw[known, state] - ys[known, state]) / scale, ys[known, state] / scale
        spread[:, state] = np.interp(t, t[known], spread_of(residuals, smooth))
        noise = max(noise, float(residuals.std()))
    splines = tuple(spline_through(t, column) for column in ys.T)
    return Smoothed(t, np.hstack([ys, us]), rates, splines, raw, spread, noise)


def balance_of(field: Hybrid) -> Balance:
    """Returns the balance that replaces the network's terms and refines the constants of the known equations."""
    known, states = field.known, field.known.system.states
    if known.triggers:
        raise ValueError("discover does not read triggers; fit the equations between them.")
    if known.system.time in known.equations.names_used():
        raise ValueError(f"the equations have the time {known.system.time!r} in them; discover needs them without it.")
    constants = {normalize(name): value for name, value in known.constants.as_dict().items()}
    rests = {state: f"rest{state}_" for state in field.rest}
    texts = known.texts()
    rates = [f"{texts[name]} + {rests[at]}" if at in rests else texts[name] for at, name in enumerate(states)]
    terms = [name for name, _ in field.terms]
    titles = (*terms, *(f"rest of {states[at]}" for at in rests), *constants)
    return Balance(titles, (*terms, *rests.values(), *constants), tuple(rates), constants=constants)


def network_of(field: Hybrid) -> Reader:
    """Returns a function for the network's output in user units: terms, then remainders of the rates, `(function,)`."""
    system, rest = field.known.system, np.array(field.rest, int)
    sizes = [size for _, size in field.terms]

    def read(t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]) -> Float[Array, " function"]:
        output = field.correction(*system.in_solver_units(t, y, u))
        added = jnp.zeros(len(system.states), output.dtype).at[rest].set(output[len(sizes) :])
        terms = output[: len(sizes)] * jnp.asarray(sizes, output.dtype)
        return jnp.concatenate([terms, system.users_rates(y, added)[rest]])

    return read
