"""The check of an export: how far predictions are apart, and the steps whose own error does not count."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from node_fit.export import export
from node_fit.export.functions import Steps
from node_fit.export.tracing import CannotExport
from node_fit.export.trials import difference

THEIRS = [np.array([[0.0, 1.0], [10.0, 3.0]]), np.array([[5.0, np.nan]])]


def test_a_difference_is_a_share_of_the_range_of_its_column():
    ours = [each + np.array([0.1, 0.1]) for each in THEIRS]
    found = difference(ours, THEIRS, ("x", "y"))
    assert found.column == "y" and found.largest == pytest.approx(0.05)
    assert difference(THEIRS, THEIRS, ("x", "y")).largest == 0


@pytest.mark.parametrize(("row", "column", "value"), [(0, 0, np.nan), (0, 0, np.inf), (2, 1, 1.0)])
def test_predictions_of_which_one_is_finite_and_the_other_not_are_infinitely_far_apart(row, column, value):
    ours = np.concatenate(THEIRS)
    ours[row, column] = value
    found = difference([ours], THEIRS, ("x", "y"))
    assert found.largest == np.inf and found.column == ("x", "y")[column]


@pytest.mark.parametrize(("method", "longest", "fewest"), [("tsit5", 0.25, 1), ("radau5", np.inf, 4)])
def test_steps_are_halved_until_predictions_move_by_less(method, longest, fewest, monkeypatch):
    """The predictions' error is the square of the steps, so that halving steps of 1/4 moves them by 3/64."""
    module = ModuleType("model")

    def simulate(module: ModuleType, trials: object) -> list[np.ndarray]:
        step = module.LONGEST_STEP if method == "tsit5" else 1 / module.FEWEST_STEPS
        return [np.array([[0.0], [1.0], [0.5 + step**2]])]

    monkeypatch.setattr(export, "render_numpy", lambda exported: {"model.py": ""})
    monkeypatch.setattr(export, "load_module", lambda path: module if Path(path).exists() else None)
    monkeypatch.setattr(export, "simulate_all", simulate)
    first = Steps(method, 1.0 if method == "tsit5" else np.inf, 1)
    exported = SimpleNamespace(steps=first, columns=("x",))
    assert export.choose_steps(exported, [], 3 / 64) == Steps(method, longest, fewest)
    with pytest.raises(CannotExport, match="no fixed steps give this accuracy"):
        export.choose_steps(exported, [], 0.0)
