"""Interactive simulation of a saved model in this process, with other constants, initial states and inputs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.domains import to_line
from ..data.groups import BY_TRAJECTORY
from ..data.inputs import are_held
from ..data.tables.times import SECONDS
from ..export.trials import Given
from ..model.fields.known import Constants, constants_in
from ..model.neural_ode import NeuralODE
from ..report.page import jsonable_numbers, jsonable_times
from ..report.run_files import Predictions, read_config_text, read_json, read_predictions
from ..runtime.placement import carry, dtype_of, precision_of, scope_of
from ..runtime.serialization import Json, is_json
from ..storage.model_file import load

# Points per curve, maximum number of trajectories, and maximum length of a simulation relative to its record.
PLAYED_POINTS, MAX_TRAJECTORIES, MAX_LONGER = 400, 200, 10.0
PAGE_INPUT_KINDS = ("measured", "constant", "step", "sine")


class NotPlayable(ValueError):
    """Raised for a run whose model the page can't simulate; the message gives the reason."""


@dataclass(frozen=True)
class Player:
    """The model of a run, and the records used for fitting and scoring.

    - `model`: the model with the fitted constants. `records`: one per trajectory, padded to one length.
    """

    model: NeuralODE
    records: Dataset

    @staticmethod
    def of(folder: Path) -> "Player":
        """Loads a run. It can be untrusted: only the model file and the table of predictions are loaded.

        **Raises:** `NotPlayable`, or `ValueError` if a file is damaged.
        """
        if not (folder / "model.safetensors").is_file():
            raise NotPlayable("this run has no model yet.")
        config = read_config_text(folder / "config.yaml")[0].get("data")
        if is_json(config) and (config.get("events") is not None or "NONMEM" in str(config.get("_target_"))):
            raise NotPlayable("a model with doses or events is not simulated here; node-fit predict does that.")
        model = load(folder / "model.safetensors").typical
        predictions = read_predictions(folder / "predictions.csv")
        if predictions is None:
            raise NotPlayable("this run has no predictions.csv, whose records a simulation begins with.")
        return Player(model, records_of_predictions(model, predictions))

    def describe(self, confidence: Mapping[str, object]) -> Json:
        """Describes the page's controls: constants with ranges, initial states, inputs and trajectories."""
        model = self.model
        intervals = confidence.get("constants")
        constants: list[Json] = []
        values = model.constants()
        for group in constants_in((model.field, model.observation)):
            for name, (lower, upper), _ in group.free():
                interval = intervals.get(name) if is_json(intervals) else None
                constants.append({"name": name, "value": values[name], "range": range_of(values[name], lower, upper)})
                constants[-1]["interval"] = interval if is_json(interval) else None
        starts = [self.start_of(row) for row in range(min(len(self.records.trajectories), MAX_TRAJECTORIES))]
        return {
            "time": self.records.time,
            "states": list(model.states),
            "latent": [] if model.start.read_rows > 1 else list(model.latent),
            "hidden": list(model.hidden),
            "inputs": [name for name in model.inputs if name != BY_TRAJECTORY],
            "units": dict(model.units),
            "constants": constants,
            "trajectories": [
                {"name": self.records.trajectories[row], "start": jsonable_numbers(start), "span": self.span_of(row)}
                for row, start in enumerate(starts)
            ],
            "reach": jsonable_numbers(self.reach()),
        }

    def span_of(self, row: int) -> list[float]:
        """Returns the first and last time of a trajectory."""
        return [float(self.records.ts[row, 0]), float(self.records.ts[row, self.records.lengths[row] - 1])]

    def reach(self) -> Float[np.ndarray, "state 2"]:
        """Returns the slider range of each state, from the measurements, or else the initial states, plus a margin."""
        starts = np.stack([self.start_of(row) for row in range(min(len(self.records.trajectories), 20))])
        low, high = starts.min(axis=0), starts.max(axis=0)
        if self.model.is_measured or self.model.hidden:
            count = len(self.model.states)
            measured = self.records.ys.reshape(-1, count)
            low[:count] = np.fmin(low[:count], np.nanmin(measured, axis=0))
            high[:count] = np.fmax(high[:count], np.nanmax(measured, axis=0))
        room = np.maximum(high - low, 0.5 * np.maximum(np.abs(low), np.abs(high)))
        return np.stack([low - 0.5 * room, high + 0.5 * room], axis=1)

    def start_of(self, row: int) -> Float[np.ndarray, " state"]:
        """Estimates the initial state of a trajectory by the model's rule, for all states in the user's units."""
        model = self.model
        with scope_of(model):
            data = model.scaler.mark_angles(self.records.select([row]))
            batch = carry(model.start.needed_rows(model.batch(data)), dtype_of(precision_of(model)))
            scaled = eqx.filter_jit(NeuralODE.estimated_start)(model, batch)
            return np.asarray(model.system.scaler.unscale_states(np.asarray(scaled, np.float64)))[0]

    def simulate(self, asked: Mapping[str, object]) -> Json:
        """Simulates a trajectory with the page's settings.

        **Arguments:** `asked`: `trajectory` (its number), and changes from the fit: `constants` by name, `start` by
        state, `inputs` by name (see `waveform`), and `until`, the last time.

        **Returns:** times, the curve, inputs, the measurements, and the NRMSE of the curve at the measurements.

        **Raises:** `ValueError` with the invalid setting.
        """
        records, model = self.records, with_changed_constants(self.model, numbers_in(asked, "constants"))
        row = asked.get("trajectory", 0)
        if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < len(records.trajectories):
            raise ValueError("trajectory must be the number of one of the records.")
        starts = numbers_in(asked, "start")
        data = self.driven_record(row, asked)
        if starts:
            model = with_start(model, self.start_of(row), starts)
        ts = np.linspace(*span_of_record(data), PLAYED_POINTS)[None]
        curve = model.predict(data, ts)[0]
        length = int(records.lengths[row])
        measured, times = records.ys[row, :length], records.ts[row, :length]
        inside = times <= ts[0, -1]
        return {
            "ts": jsonable_times(ts[0]),
            "ys": jsonable_numbers(curve.T),
            "us": jsonable_numbers(data.us[0, : data.lengths[0]].T),
            "input_ts": jsonable_times(data.ts[0, : data.lengths[0]]),
            "held": are_held(model.solver.interpolation, len(model.inputs)),
            "measured": {"ts": jsonable_times(times), "ys": jsonable_numbers(measured.T)},
            "nrmse": None
            if data.ts is not records.ts and asked.get("inputs")
            else nrmse_of(ts[0], curve, times[inside], measured[inside]),
        }

    def driven_record(self, row: int, asked: Mapping[str, object]) -> Dataset:
        """Returns the record for a simulation: a trajectory, optionally with other inputs or times."""
        record = self.records.select([row])
        first, last = self.span_of(row)
        until = asked.get("until", last)
        if not is_number(until) or not 0 < until - first <= MAX_LONGER * (last - first) * (1 + 1e-9):
            raise ValueError(f"until must be a time after {first:g}, at most {MAX_LONGER:g} times as far as {last:g}.")
        waves = asked.get("inputs", Json())
        if not is_json(waves) or set(waves) - set(record.inputs):
            raise ValueError("inputs must be a mapping of the model's inputs.")
        if not waves and until == last:
            return record
        # Use a separate grid, so that steps and sines are not sampled at measurement times.
        length = int(record.lengths[0])
        ts = np.linspace(first, until, 2 * PLAYED_POINTS)
        held = are_held(self.model.solver.interpolation, len(record.inputs))
        us = (
            np.stack(
                [
                    waveform(waves[name], ts, first)
                    if name in waves and is_json(waves[name]) and waves[name].get("kind") != "measured"
                    else extend_input(ts, record.ts[0, :length], record.us[0, :length, column], held=held[column])
                    for column, name in enumerate(record.inputs)
                ],
                axis=1,
            )
            if record.inputs
            else np.zeros((len(ts), 0))
        )
        ys = np.full((len(ts), len(record.states)), np.nan)
        ys[0] = record.ys[0, 0]
        return Dataset.from_arrays(
            [ts],
            ys[None],
            us[None] if record.inputs else None,
            states=record.states,
            inputs=record.inputs or None,
            trajectories=record.trajectories,
            time=record.time,
        )


def records_of_predictions(model: NeuralODE, found: Predictions) -> Dataset:
    """Builds the complete records of `predictions.csv`: rows of several splits joined, in time order."""
    unit = dict(model.units).get(model.system.time, "")
    factor = SECONDS[found.origin.unit] / SECONDS[unit] if found.origin is not None and unit in SECONDS else 1.0
    names = list(dict.fromkeys(found.names))[:MAX_TRAJECTORIES]
    owner = np.repeat(np.array([names.index(n) if n in names else -1 for n in found.names]), found.ends - found.starts)
    ts, ys, us = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for number in range(len(names)):
        rows = np.flatnonzero(owner == number)
        times, first = np.unique(found.ts[rows] * factor, return_index=True)
        ts.append(times)
        ys.append(found.ys[rows][first])
        us.append(found.us[rows][first])
    return Dataset.from_arrays(
        ts,
        ys,
        us if found.inputs else None,
        states=found.states,
        inputs=found.inputs or None,
        trajectories=names,
        time=model.system.time,
    )


def with_changed_constants(model: NeuralODE, changed: Mapping[str, float]) -> NeuralODE:
    """Replaces the values of some fitted constants of a model.

    **Raises:** `ValueError` if a constant does not exist, or its value is not within its bounds.
    """
    unused = set(changed)

    def change(node: object) -> object:
        if not isinstance(node, Constants):
            return node
        values, raw = node.as_dict(), np.array(jax.device_get(node.raw))
        for place, (name, bounds, scale) in enumerate(node.free()):
            lower, upper = bounds
            value = changed.get(name, values[name])
            if name in changed:
                unused.discard(name)
                if (lower is not None and value <= lower) or (upper is not None and value >= upper):
                    raise ValueError(f"{name} must be within its bounds, {lower} and {upper}; got {value:g}.")
                raw[place] = to_line(np.asarray(value), bounds) / scale
        return replace(node, raw=jnp.asarray(raw, raw.dtype))

    if not changed:
        return model
    with scope_of(model):
        updated = jax.tree.map(change, model, is_leaf=lambda node: isinstance(node, Constants))
    if unused:
        raise ValueError(f"the model has no constant {sorted(unused)[0]!r:.40} that was fitted.")
    return updated


def with_start(model: NeuralODE, start: Float[np.ndarray, " state"], changed: Mapping[str, float]) -> NeuralODE:
    """Sets the initial state of a model.

    **Arguments:** `start`: all states in the user's units. `changed`: replaced values by state.
    """
    if model.start.read_rows > 1:
        raise ValueError("the start of this model is read from several rows, and can't be set.")
    if unknown := set(changed) - set(model.latent):
        raise ValueError(f"the model has no state {sorted(unknown)[0]!r:.40}; it has {', '.join(model.latent)}.")
    values = np.array([changed.get(name, value) for name, value in zip(model.latent, start, strict=True)])
    with scope_of(model):
        scaled = np.asarray(model.system.scaler.scale_states(values[None]))
        fixed = jnp.asarray(scaled, dtype_of(precision_of(model)))
    return replace(model, start=Given(model.start.guess, fixed))


def waveform(wave: Json, ts: Float[np.ndarray, " time"], first: float) -> Float[np.ndarray, " time"]:
    """Computes an input over time: `constant` at a value; a `step` to it at a time, from `before`; or a `sine`.

    **Raises:** `ValueError` if a number is missing, or the kind is unknown.
    """
    kind = wave.get("kind")
    if kind not in PAGE_INPUT_KINDS:
        raise ValueError(f"the kind of an input must be one of {', '.join(PAGE_INPUT_KINDS)}, got {kind!r:.40}.")
    needed = {"constant": ("value",), "step": ("value", "before", "at"), "sine": ("value", "amplitude", "period")}[kind]
    numbers: dict[str, float] = {}
    for key in needed:
        if not is_number(number := wave.get(key)):
            raise ValueError(f"{key} of an input must be a number, got {number!r:.40}.")
        numbers[key] = float(number)
    value = numbers["value"]
    if kind == "constant":
        return np.full(len(ts), value)
    if kind == "step":
        return np.where(ts >= numbers["at"], value, np.full(len(ts), numbers["before"]))
    if numbers["period"] <= 0:
        raise ValueError("the period of an input must be positive.")
    return value + numbers["amplitude"] * np.sin(2 * math.pi * (ts - first) / numbers["period"])


def extend_input(
    ts: Float[np.ndarray, " time"], known: Float[np.ndarray, " row"], values: Float[np.ndarray, " row"], *, held: bool
) -> Float[np.ndarray, " time"]:
    """Evaluates a measured input at other times; it stays constant after its last row."""
    if not held:
        return np.interp(ts, known, values)
    return values[np.clip(np.searchsorted(known, ts, side="right") - 1, 0, len(values) - 1)]


def span_of_record(data: Dataset) -> tuple[float, float]:
    return float(data.ts[0, 0]), float(data.ts[0, data.lengths[0] - 1])


def nrmse_of(ts: np.ndarray, curve: np.ndarray, times: np.ndarray, measured: np.ndarray) -> float | None:
    """Computes the error of a curve at measurements, in standard deviations per channel; None if undefined."""
    at_measurements: np.ndarray = np.stack(
        [np.interp(times, ts, curve[:, place]) for place in range(curve.shape[1])], axis=1
    )
    scales = np.nanstd(measured, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(np.nanmean((at_measurements - measured) ** 2, axis=0)) / scales
    finite = errors[np.isfinite(errors)]
    return round(float(np.sqrt((finite**2).mean())), 6) if finite.size else None


def range_of(value: float, lower: float | None, upper: float | None) -> list[float]:
    """Returns the ends of a constant's slider: its bounds, or from zero to three times its value."""
    size = abs(value) or 1.0
    low = lower if lower is not None else (0.0 if value > 0 else value - 2 * size)
    high = upper if upper is not None else (3 * value if value > 0 else (0.0 if value < 0 else size))
    return [float(low), float(high)]


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def numbers_in(asked: Mapping[str, object], key: str) -> dict[str, float]:
    """Reads a mapping of names to numbers from a request.

    **Raises:** `ValueError` if the value is not such a mapping.
    """
    mapping = asked.get(key, Json())
    if not is_json(mapping) or not all(is_number(value) for value in mapping.values()):
        raise ValueError(f"{key} must be a mapping of names to numbers.")
    return {str(name): float(value) for name, value in mapping.items()}


def confidence_of_run(folder: Path) -> Mapping[str, object]:
    """Reads the confidence of a run's constants from its summary."""
    confidence = read_json(folder / "summary.json").get("confidence")
    return confidence if is_json(confidence) else {}
