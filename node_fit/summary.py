"""What a job has come to, as its `summary.json` holds it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .baselines import baselines
from .dataset import Dataset
from .diagnosis import Diagnosis
from .ensemble import Ensemble
from .evaluation import coverage, score
from .fitting import Fit
from .placement import Placement
from .simulation import Simulated

EVERY = ("train", "validation", "test")


def summarise(
    fit: Fit, splits: Mapping[str, Dataset], simulated: Simulated, diagnosis: Diagnosis, place: Placement
) -> dict[str, Any]:
    """The scores of a fit and of what is simpler, how it went, and what it has come to.

    **Arguments:**

    - `fit`, `diagnosis`: of the run.
    - `splits`, `simulated`: the data and their predictions, by the same names.
    - `place`: where the run had its arrays.
    """
    simple = {name: baselines(splits["train"], part) for name, part in splits.items()}
    scores = {name: score(part, simulated.at_rows[name]).as_dict() for name, part in splits.items()}
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
        "start": fit.model.typical.start.given,
        "constants": fit.model.constants(),
        "metrics": {name: scores.get(name) for name in EVERY},
        "baselines": {
            kind: {name: simple[name][kind].as_dict() if name in simple else None for name in EVERY}
            for kind in ("mean", "persistence", "linear")
        },
        "diagnosis": asdict(diagnosis),
        "ensemble": None if not fit.members else describe_ensemble(fit, splits, simulated),
    }


def describe_ensemble(fit: Fit, splits: Mapping[str, Dataset], simulated: Simulated) -> dict[str, Any]:
    """How the members ended, and how much of each split's measurements their bands cover."""
    ensemble = fit.model if isinstance(fit.model, Ensemble) else None
    return {
        "members": [asdict(end) for end in fit.members],
        "kept": 1 if ensemble is None else len(ensemble.members),
        "calibrated": ensemble is not None and ensemble.calibrated,
        "level": simulated.level if ensemble is not None else None,
        "coverage": {name: coverage(splits[name], *simulated.bands[name]) for name in simulated.bands},
    }
