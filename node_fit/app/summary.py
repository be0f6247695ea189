"""The content of a job's `summary.json`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from ..data.dataset import Dataset
from ..evaluation.chaos import ChaosScores
from ..evaluation.diagnosis import Diagnosis
from ..evaluation.metrics import Score, coverage, jsonable, score_predictions
from ..evaluation.residuals import check_residuals
from ..evaluation.simulation import Simulated
from ..fitting.result import Fit
from ..model.ensemble import Ensemble
from ..model.fields.known import quantities
from ..model.initial_state.rule import describe_known_starts
from ..runtime.placement import Placement, explain_memory

EVERY = ("train", "validation", "test")
NOT_ASKED = "confidence=none."


def summarise(
    fit: Fit,
    splits: Mapping[str, Dataset],
    given: Mapping[str, int],
    simulated: Simulated,
    simple: Mapping[str, Mapping[str, Score]],
    diagnosis: Diagnosis,
    place: Placement,
    method: str,
    chaos: ChaosScores | None = None,
) -> dict[str, Any]:
    """Summarises a fit: its status, costs, scores, baseline scores and diagnosis.

    **Arguments:**

    - `fit`, `diagnosis`: the run's fit and its diagnosis.
    - `splits`, `simulated`: the data with the rows that count, and their predictions, by the same names.
    - `given`: number of rows of each split, with those that starts are read from.
    - `simple`: scores of simple models for each split.
    - `place`: the run's precision and devices.
    - `method`: of the confidence of constants: `fisher`, `profile` or `none`.
    - `chaos`: scores of a chaotic system.
    """
    scores = {name: score_predictions(part, simulated.at_rows[name]).as_dict() for name, part in splits.items()}
    return {
        "status": fit.status,
        "reason": fit.reason,
        "steps": fit.steps,
        "compiles": fit.compiles,
        "cached": fit.cached,
        "seconds": {"compile": round(fit.compile_seconds, 3), "train": round(fit.train_seconds, 3)},
        "precision": place.precision,
        "device": place.devices[0].device_kind,
        "devices": fit.devices,
        "parameters": fit.parameters,
        "start": describe_known_starts(fit.model.typical.start, fit.model.typical.system),
        "constants": fit.model.constants(),
        "derived": {name: jsonable(value) for name, value in derived_values(fit).items()},
        **sureness(fit, method),
        "residuals": residuals_of(fit, splits, simulated),
        "metrics": {name: scores.get(name) for name in EVERY},
        "baselines": {
            kind: {name: simple[name][kind].as_dict() if name in simple else None for name in EVERY}
            for kind in simple["train"]
        },
        # Rows that are scored, and those that the run has said it was given.
        "rows": {name: int(part.scored.sum()) for name, part in splits.items()},
        "given_rows": dict(given),
        "choices": {each.key: {"value": str(each.value), "reason": each.reason} for each in fit.choices},
        "warnings": list(fit.warnings),
        "linear_is_best": fit.is_linear,
        "diagnosis": asdict(diagnosis),
        "attempts": [asdict(each) for each in fit.attempts],
        "horizon": fit.horizon,
        "chaos": None if chaos is None else chaos.as_dict(),
        "starts": None if fit.starts is None else fit.starts.as_dict(),
        "ensemble": describe_ensemble(fit, splits, simulated)
        if isinstance(fit.model, Ensemble) or fit.members
        else None,
    }


def derived_values(fit: Fit) -> dict[str, float]:
    """The quantities that follow from the constants, at their fitted values."""
    values = fit.model.constants()
    return {each.name: each.of(values) for each in quantities(fit.options.derived)}


def sureness(fit: Fit, method: Any) -> dict[str, Any]:
    """How sure the constants are, and the likelihood; or why that is left out."""
    if method == "none":
        reason = NOT_ASKED
    elif not fit.model.constants():
        reason = "the field has no constants; Fit.likelihood gives the likelihood of any fit of few parameters."
    else:
        try:
            return {"likelihood": asdict(fit.likelihood()), "confidence": fit.confidence(method).as_dict()}
        except (ValueError, MemoryError, np.linalg.LinAlgError, jax.errors.JaxRuntimeError) as error:
            reason = explain_memory(error) or str(error)
    return {key: {"left_out": reason} for key in ("likelihood", "confidence")}


def residuals_of(fit: Fit, splits: Mapping[str, Dataset], simulated: Simulated) -> dict[str, Any]:
    """Whether the residuals of each split are independent noise, weighed by their known deviations."""
    scaler = fit.model.typical.scaler
    return {
        name: check_residuals(scaler.marked(splits[name]), simulated.at_rows[name], scaler).as_dict() for name in splits
    }


def describe_ensemble(fit: Fit, splits: Mapping[str, Dataset], simulated: Simulated) -> dict[str, Any] | None:
    """How the members ended, and what share of each split's measurements their bands cover; `None` of a single fit."""
    ensemble = fit.model if isinstance(fit.model, Ensemble) else None
    if ensemble is None and not fit.members:
        return None
    return {
        "members": [asdict(end) for end in fit.members],
        "kept": 1 if ensemble is None else len(ensemble.members),
        "calibrated": ensemble is not None and ensemble.calibrated,
        "level": simulated.level if ensemble is not None else None,
        "coverage": {name: coverage(splits[name], *simulated.bands[name]) for name in simulated.bands},
    }
