"""Where fits start: points that fill a box evenly, and generations of points that end in several minima."""

import time

import numpy as np
import pytest

from node_fit.minimize import restarts
from node_fit.minimize.restarts import draw_evenly, evolve_points


def test_points_fill_the_box_evenly():
    lower, upper = np.array([-1.0, 10.0]), np.array([1.0, 20.0])
    points = draw_evenly(lower, upper, 50, seed=0)
    assert len(points) == 64 and np.array_equal(points, draw_evenly(lower, upper, 50, seed=0))
    cells = np.floor((points - lower) / (upper - lower) * 8).astype(int)
    assert len(np.unique(cells, axis=0)) == 64, "one in each cell"


def double(points: np.ndarray) -> np.ndarray:
    """The lower minimum at 1/4, another at 3/4, and no value near the ends."""
    x = points[:, 0]
    losses = np.minimum((x - 0.25) ** 2, (x - 0.75) ** 2 + 1e-3) + (points[:, 1] - 0.5) ** 2
    return np.where(np.abs(x - 0.5) > 0.45, np.nan, losses)


def test_generations_end_in_the_minima_the_best_first(monkeypatch):
    monkeypatch.setattr(restarts, "POPULATION", 64)
    sizes: list[int] = []

    def losses(points: np.ndarray) -> np.ndarray:
        sizes.append(len(points))
        return double(points)

    found = evolve_points(losses, 2, 0, lambda _: None)
    assert set(sizes) == {restarts.TOGETHER}, "a part that is not full is filled up"
    np.testing.assert_allclose(found[0], [0.25, 0.5], atol=0.02)
    values = double(found)
    assert list(values) == sorted(values) and (np.abs(found[:, 0] - 0.75) < 0.1).any()


def test_time_ends_the_generations_and_so_does_who_is_told(monkeypatch):
    monkeypatch.setattr(restarts, "MOST_SECONDS", 0.05)
    told: list[str] = []

    def losses(points: np.ndarray) -> np.ndarray:
        time.sleep(0.03)
        return double(points)

    assert evolve_points(losses, 2, 0, told.append).shape[1] == 2
    assert len(told) == 2 and told[0].startswith("several starts: generation 1 of 21, 0 s in all")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evolve_points(losses, 2, 0, interrupt)
