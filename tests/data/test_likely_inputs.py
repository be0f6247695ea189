"""Columns that look like inputs by how they move: simulated tables with known roles."""

import time

import numpy as np
import pandas as pd
import pytest

from node_fit.data.tables.likely_inputs import (
    LikelyInput,
    compare,
    find_inputs_in_rows,
    find_likely_inputs,
    level_out_columns,
    rows_before,
)


def find_inputs(*columns: np.ndarray, follows: np.ndarray | None = None) -> dict[str, LikelyInput]:
    """Finds the inputs among columns that are named `c0`, `c1`, and so on."""
    values = np.stack(columns, axis=1).astype(float)
    is_next = np.arange(len(values)) > 0 if follows is None else follows
    return find_inputs_in_rows(values, is_next, [f"c{at}" for at in range(len(columns))])


def respond(rng: np.random.Generator, *inputs: np.ndarray, noise: float = 0.05) -> np.ndarray:
    """A level that relaxes towards the sum of its inputs, measured with noise."""
    level, levels = 0.0, []
    for moved in np.sum(inputs, axis=0):
        levels.append(level)
        level += 0.3 * (moved - level)
    return np.array(levels) + noise * rng.normal(size=len(levels))


def two_levels(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.repeat(rng.permutation(rows // 10) % 2, 10).astype(float)


def held(rng: np.random.Generator, rows: int) -> np.ndarray:
    """A new random level after every 8 rows."""
    return np.repeat(rng.uniform(-1, 1, rows // 8), 8)


def new_values(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.normal(size=rows)


def rain(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Showers on wet days, which follow each other more often than dry ones."""
    wet = np.zeros(rows, bool)
    for day in range(1, rows):
        wet[day] = rng.random() < (0.5 if wet[day - 1] else 0.2)
    return np.where(wet, rng.gamma(0.7, 1.0, rows), 0.0)


def weather(rng: np.random.Generator, rows: int) -> np.ndarray:
    """A daily swing, and a random walk that returns."""
    walk = np.zeros(rows)
    for row in range(1, rows):
        walk[row] = 0.97 * walk[row - 1] + 0.1 * rng.normal()
    return np.sin(2 * np.pi * np.arange(rows) / 96) + walk


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (two_levels, "stays at one of 2 levels"),
        (held, "jumps between values that it holds"),
        (new_values, "drives 'c1' and is predicted by no column"),
        (rain, "drives 'c1' and is predicted by no column"),
    ],
)
def test_inputs_of_many_kinds_are_certain(draw, reason):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        moved = draw(rng, 240)
        assert find_inputs(moved, respond(rng, moved)) == {"c0": LikelyInput(reason, is_certain=True)}, seed


def test_weather_that_a_state_follows_is_certain():
    """Its noise lasts, so that errors of predictions grow with the time ahead, unlike with the noise of a sensor."""
    reason = "drives 'c{}' and is driven by no column"
    count = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        outdoor, heater = weather(rng, 480), two_levels(rng, 480)
        alone = find_inputs(outdoor, respond(rng, outdoor))
        beside = find_inputs(outdoor, heater, respond(rng, outdoor, heater))
        assert set(alone) <= {"c0"} and set(beside) <= {"c0", "c1"} and beside["c1"].is_certain
        count += alone.get("c0") == LikelyInput(reason.format(1), is_certain=True)
        count += beside.get("c0") == LikelyInput(reason.format(2), is_certain=True)
    assert count >= 16


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_an_oscillator_that_drives_another_state_is_likely_an_input_only(noise):
    """It is an autonomous part of the system, unless the table has an input."""
    rng = np.random.default_rng(0)
    clean = np.cos(0.135 * np.arange(480))
    found = find_inputs(clean + noise * rng.normal(size=480), respond(rng, clean, noise=0.3))
    assert found == {"c0": LikelyInput("drives 'c1' and is driven by no column")}


def lotka_volterra(y):
    return [y[0] * (1 - y[1]), y[1] * (y[0] - 1)]


def van_der_pol(y):
    return [y[1], 1.5 * (1 - y[0] ** 2) * y[1] - y[0]]


def decay(y):
    return [-0.3 * y[0], 0.3 * y[0]]


def rotate(y):
    return [y[1], -y[0]]


@pytest.mark.parametrize("rates", [lotka_volterra, van_der_pol, decay, rotate])
@pytest.mark.parametrize("kind", ["exact", "noisy", "coarse", "read less often", "read rarely"])
def test_states_that_move_each_other_are_never_certain_inputs(rates, kind):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y, rows = np.array([1.0, 0.3]), []
        for row in range(10 * 240):
            rows += [y.copy()] if row % 10 == 0 else []
            middle = y + 0.01 * np.asarray(rates(y))
            y = y + 0.02 * np.asarray(rates(middle))
        values = np.array(rows)
        if kind == "noisy":
            values += 0.2 * values.std(axis=0) * rng.normal(size=values.shape)
        if kind == "coarse":
            size = np.ptp(values[:, 0]) / rng.integers(4, 15)
            values[:, 0] = np.round(values[:, 0] / size) * size
        if kind.startswith("read"):
            stay = 8 if kind == "read less often" else 11
            values[:, 0] = np.repeat(values[::stay, 0], stay)[:240]
        found = find_inputs(*values.T)
        assert not any(likely.is_certain for likely in found.values()), (seed, found)


def test_a_chaotic_state_that_is_read_less_often_is_no_input():
    """Its values do not follow each other, but the other states foretell them."""
    y, rows = np.array([1.0, 1.0, 20.0]), []
    for row in range(5 * 1000):
        rows += [y.copy()] if row % 5 == 0 else []
        for _ in range(2):
            y = y + 0.005 * np.array([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])
    for column in range(3):
        values = np.array(rows)
        values[:, column] = np.repeat(values[::6, column], 6)[:1000]
        assert not any(likely.is_certain for likely in find_inputs(*values.T).values()), column


def test_a_weak_smooth_input_is_certain_beside_another_one():
    """Only a state that responds in the same row, is noise, or would be the last one is not taken for it."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rain_, season = rain(rng, 480), np.sin(2 * np.pi * np.arange(480) / 365)
        flow = respond(rng, 3 * rain_, 0.01 * season)
        found = find_inputs(rain_, season, flow)
        assert found.keys() == {"c0", "c1"} and found["c1"] == LikelyInput("is driven by no column", is_certain=True)
        assert find_inputs(rain_, rng.normal(size=480), flow).keys() == {"c0"}, "noise"
        assert find_inputs(rain_, season).keys() <= {"c0"}, "no state is left"
        gate = two_levels(rng, 480)
        at_once = np.convolve(gate, np.exp(-np.arange(60) / 6), "full")[:480]
        assert find_inputs(gate, at_once, respond(rng, gate)).keys() == {"c0"}


def test_a_chaotic_state_that_others_drive_by_products_is_no_input():
    """Predictions of Lorenz's z are linear in its past alone: x and y drive it by their product."""
    for seed in range(5):
        rng, y, rows = np.random.default_rng(seed), np.array([1.0, 1.0, 20.0]), []
        for row in range(10 * 600):
            rows += [y.copy()] if row % 10 == 0 else []
            y = y + 0.01 * np.array([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])
        values = np.array(rows)
        values += 0.05 * values.std(axis=0) * rng.normal(size=values.shape)
        assert not any(likely.is_certain for likely in find_inputs(*values.T).values()), seed


def test_noise_that_two_sensors_share_makes_none_an_input():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        shared = rng.normal(size=300)
        values = [shared + 0.3 * rng.normal(size=300) for _ in range(2)]
        assert find_inputs(*values) == {}


def heat(current: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A temperature that the square of a current raises by less in a row than its noise."""
    level, levels = 0.0, []
    for amperes in current:
        levels.append(level)
        level += 0.01 * (amperes**2 - level)
    return np.array(levels) + 0.03 * rng.normal(size=len(levels))


def voltage_of(current: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A voltage that jumps with a current, and follows it slowly."""
    level, levels = 0.0, []
    for amperes in current:
        levels.append(4 - 0.05 * amperes - level)
        level += 0.03 * (0.05 * amperes - level)
    return np.array(levels) + 0.003 * rng.normal(size=len(levels))


@pytest.mark.parametrize("levels", [np.array([-2.0, -1.0, 0.0, 1.0, 2.5]), np.linspace(-2, 3, 60)])
def test_levels_that_a_sensor_reads_with_noise_are_certain(levels):
    rng = np.random.default_rng(3)
    current = np.repeat(rng.choice(levels, 20), 60) + 0.005 * rng.normal(size=1200)
    likely = find_inputs(current, voltage_of(current, rng), heat(current, rng))
    assert {name: found.is_certain for name, found in likely.items()} == {"c0": True}


def test_a_sensor_that_follows_levels_at_once_is_left_as_it_is():
    rng = np.random.default_rng(0)
    levels = np.repeat(rng.choice([0.0, 1.0, 3.0, 4.0], 30), 12)
    noisy, gain, exact = (
        factor * levels + noise * rng.normal(size=360) for factor, noise in ((1, 0.01), (2, 0.03), (5, 0))
    )
    pairs = np.arange(359)
    for other in (gain, exact):
        both = np.stack([noisy, other], axis=1)
        np.testing.assert_array_equal(level_out_columns(both, pairs), both)
    alone = level_out_columns(np.stack([noisy, rng.normal(size=360).cumsum()], axis=1), pairs)[:, 0]
    assert len(np.unique(alone)) == 4
    np.testing.assert_allclose(alone, levels, atol=0.01)


def test_steps_that_drift_between_jumps_are_no_levels():
    rng = np.random.default_rng(0)
    drifting = np.repeat(rng.choice([0.0, 2.0, 5.0], 20), 30) + 0.2 * np.tile(np.linspace(0, 1, 30), 20)
    values = (drifting + 0.02 * rng.normal(size=600))[:, None]
    np.testing.assert_array_equal(level_out_columns(values, np.arange(599)), values)


def test_inputs_alone_leave_no_state():
    rng = np.random.default_rng(0)
    assert find_inputs(two_levels(rng, 240), held(rng, 240)) == {}


def leaping(rng: np.random.Generator) -> np.ndarray:
    """Five levels in any order, each held for 6 to 20 rows."""
    parts = [np.full(rng.integers(6, 20), level) for level in rng.choice([-1.0, 0, 0.5, 1, 2], 40)]
    return np.concatenate(parts)


def coarse(rng: np.random.Generator) -> np.ndarray:
    """A damped swing that a sensor of six levels measures with some noise."""
    ts = np.arange(240)
    swing = np.exp(-0.005 * ts) * np.cos(rng.uniform(0.03, 0.1) * ts) + 0.02 * rng.normal(size=240)
    return np.round(2.5 * swing)


def counted(rng: np.random.Generator) -> np.ndarray:
    """Rare events of a day."""
    return rng.poisson(0.3, 240).clip(0, 5).astype(float)


def spiking(rng: np.random.Generator) -> np.ndarray:
    """Spikes from rest to a high level, which a sensor of six levels sees decay."""
    values = np.zeros(240)
    for row in range(10, 230, 20):
        values[row : row + 6] = [5, 5, 3, 3, 1, 1]
    return np.roll(values, int(rng.integers(10)))


def stairs(_: np.random.Generator) -> np.ndarray:
    """Up and down, one level at a time but for two."""
    return np.repeat([0.0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 2, 3, 2, 1, 3, 2, 1], 12)


@pytest.mark.parametrize(
    ("draw", "is_input"), [(leaping, True), (coarse, False), (counted, False), (spiking, False), (stairs, False)]
)
def test_a_column_is_surely_an_input_if_it_leaps_over_levels_and_stays(draw, is_input):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = draw(rng)
        found = find_inputs(values, np.linspace(0, 1, len(values)))
        assert [likely.is_certain for likely in found.values()] == [is_input], seed


def test_a_level_that_is_visited_once_does_not_make_an_input():
    """Analyses of the laboratory, repeated until the next one."""
    values = np.repeat([1.0, 7, 3, 5, 2, 6, 4], 12)
    (likely,) = find_inputs(values, np.linspace(0, 1, len(values))).values()
    assert not likely.is_certain


def driven_table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    moved = np.repeat(rng.integers(0, 3, 5), 20).astype(float)
    return moved, respond(rng, moved)


def test_steps_from_one_record_to_the_next_are_none(tmp_path):
    """Two records of few rows each, whose states differ by much at their beginnings."""
    lines = [f"{row // 50},{row % 50},{u},{y}" for row, (u, y) in enumerate(zip(*driven_table(), strict=True))]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["run,t,u,y", *lines]))
    assert list(find_likely_inputs(path, "t", "run", ["u", "y"])) == ["u"]
    path.write_text("\n".join(["run,t,u,y", *lines[:20]]))
    assert find_likely_inputs(path, "t", "run", ["u", "y"]) == {}, "too few rows"


def test_predictions_do_not_cross_records_and_gaps():
    rng = np.random.default_rng(1)
    moved = new_values(rng, 240)
    follows = np.arange(240) % 12 > 0
    parts = [respond(rng, part, noise=0.0) for part in moved.reshape(20, 12)]
    values = np.stack([moved, np.concatenate(parts) + np.repeat(1e3 * rng.normal(size=20), 12)], axis=1)
    assert find_inputs(*values.T, follows=follows)["c0"].is_certain
    assert find_inputs(*values.T) == {}, "steps between records hide everything"
    values[5, 0] = np.nan
    assert rows_before(values, follows & np.isfinite(values).all(axis=1))[[0, 4, 5, 6, 7, 11, 12, 23]].tolist() == [
        *(0, 4, 0, 0, 1, 5, 0, 11)
    ]


def test_comparisons_of_predictions_are_those_of_an_f_test():
    from scipy.stats import f as f_distribution

    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(40), rng.normal(size=(40, 3))])
    wanted = design @ [1.0, 2.0, 0.3, 0.0] + rng.normal(size=40)
    left = [((wanted - part @ np.linalg.lstsq(part, wanted)[0]) ** 2).sum() for part in (design[:, :2], design)]
    ratio = (left[0] - left[1]) / 2 / (left[1] / 36)
    table = np.linalg.qr(np.column_stack([design, wanted]), mode="r")
    found = compare(table, np.arange(2), np.arange(4), 4, 40)
    assert found.chance == pytest.approx(f_distribution.sf(ratio, 2, 36))
    assert found.share == pytest.approx(1 - left[1] / 36 / (left[0] / 38))


def test_the_chance_of_an_improvement_without_effect_is_uniform():
    rng, chances = np.random.default_rng(0), []
    for _ in range(400):
        table = np.column_stack([np.ones(30), rng.normal(size=(30, 4))])
        chances.append(compare(table, np.arange(2), np.arange(4), 4, 30).chance)
    assert np.quantile(chances, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.06)


@pytest.mark.parametrize(("columns", "rows", "limit"), [(1000, 60, 5), (20, 5000, 10)])
def test_many_columns_take_seconds(columns, rows, limit):
    values = np.random.default_rng(0).normal(size=(rows, columns))
    began = time.process_time()
    find_inputs(*values.T)
    assert time.process_time() - began < limit


def test_a_sensor_that_is_read_less_often_hides_no_input(tmp_path):
    rows = np.arange(80)
    pump = np.where(rows // 10 % 2, 4.0, 1.5)
    level = np.convolve(pump, np.exp(-np.arange(30) / 6), "full")[:80]
    rare = np.where(rows % 2, np.nan, np.where(rows // 16 % 2, 1.0, 2.0))  # It would look like an input itself.
    frame = pd.DataFrame({"t": rows, "level": level, "pump": pump, "rare": rare})
    frame.to_csv(tmp_path / "tank.csv", index=False)
    likely = find_likely_inputs(tmp_path / "tank.csv", "t", None, ["level", "pump", "rare"])
    assert {name: found.is_certain for name, found in likely.items()} == {"pump": True}
    frame.assign(pump=rare).to_csv(tmp_path / "tank.csv", index=False)
    assert "rare" not in find_likely_inputs(tmp_path / "tank.csv", "t", None, ["level", "pump", "rare"])
