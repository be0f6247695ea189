"""The content of a job's `summary.json`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal

import jax
import numpy as np

from ..evaluation.diagnosis import Assessment
from ..evaluation.metrics import jsonable
from ..fitting.result import Fit
from ..model.ensemble import Ensemble
from ..model.fields.known import quantities
from ..model.initial_state.rule import describe_known_starts
from ..report.run_files import Summary
from ..runtime.placement import AnyArray, Placement, explain_memory
from ..runtime.serialization import Json
from ..uncertainty.confidence import Method

# How sure constants are is found by one of these.
Sureness = Method | Literal["none"]
EVERY = ("train", "validation", "test")
NOT_ASKED = "confidence=none."


def summarise(fit: Fit, report: Assessment, given: Mapping[str, int], place: Placement, method: Sureness) -> Summary:
    """Summarises a fit: its status, costs, scores, baseline scores and diagnosis.

    **Arguments:**

    - `fit`, `report`: the run's fit, and what it is worth on the run's data.
    - `given`: number of rows of each split, with those that starts are read from.
    - `place`: the run's precision and devices.
    - `method`: of the confidence of constants: `fisher`, `profile` or `none`.
    """
    simple, scores = report.baselines, {name: score.as_dict() for name, score in report.scores.items()}
    sure = sureness(fit, method)
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
        "derived": {name: jsonable(float(value)) for name, value in derived_values(fit).items()},
        "likelihood": sure["likelihood"],
        "confidence": sure["confidence"],
        "residuals": {name: checks.as_dict() for name, checks in report.residuals.items()},
        "metrics": {name: scores.get(name) for name in EVERY},
        "baselines": {
            kind: {name: simple[name][kind].as_dict() if name in simple else None for name in EVERY}
            for kind in simple["train"]
        },
        # Rows that are scored, and those that the run has said it was given.
        "rows": {name: int(part.scored.sum()) for name, part in report.splits.items()},
        "given_rows": dict(given),
        "choices": {each.key: {"value": str(each.value), "reason": each.reason} for each in fit.choices},
        "warnings": list(fit.warnings),
        "linear_is_best": fit.is_linear,
        "diagnosis": asdict(report.verdict),
        "attempts": [asdict(each) for each in fit.attempts],
        "horizon": fit.horizon,
        "chaos": None if report.case.chaos is None else report.case.chaos.as_dict(),
        "starts": None if fit.restarts is None else fit.restarts.as_dict(),
        "ensemble": describe_ensemble(fit, report),
    }


def derived_values(fit: Fit) -> dict[str, float | AnyArray]:
    """The quantities that follow from the constants, at their fitted values."""
    values = fit.model.constants()
    return {each.name: each.of(values) for each in quantities(fit.options.derived)}


def sureness(fit: Fit, method: Sureness) -> dict[str, Json]:
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
    return {"likelihood": {"left_out": reason}, "confidence": {"left_out": reason}}


def describe_ensemble(fit: Fit, report: Assessment) -> Json | None:
    """How the members ended, and what share of each split's measurements their bands cover; `None` of a single fit."""
    ensemble = fit.model if isinstance(fit.model, Ensemble) else None
    if ensemble is None and not fit.members:
        return None
    return {
        "members": [asdict(end) for end in fit.members],
        "kept": 1 if ensemble is None else len(ensemble.members),
        "calibrated": ensemble is not None and ensemble.calibrated,
        "level": None if ensemble is None or report.simulated is None else report.simulated.level,
        "coverage": report.coverage,
    }
