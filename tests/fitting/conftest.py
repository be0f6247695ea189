"""What several tests of fits share."""

import pytest

from node_fit.fitting import screening
from node_fit.minimize import restarts


@pytest.fixture
def small_search(monkeypatch):
    """A quarter of the candidates over a quarter of the steps: unoptimised programs take minutes for all of them.

    A generation lasts until the slowest candidate has made all of its steps; good ones need about sixty here.
    """
    monkeypatch.setattr(restarts, "POPULATION", restarts.POPULATION // 4)
    monkeypatch.setattr(screening, "SOLVER_STEPS", screening.SOLVER_STEPS // 4)
