"""Counts how often clipped sensors are found, and what is gained by fits that know the range.

    python scripts/accuracy/clipped_sensors.py [--signals 60] [--first 10000]
    python scripts/accuracy/clipped_sensors.py --fits 3 [--first 20000]

Signals of 100 to 1,000 rows are read with a resolution of 0 to 5 % of their spread and noise of 0 or 1 %: whole ones,
in which no range should be found, and those whose greatest 15 % are clipped. Fits are of driven systems, one of whose
states is measured by a clipped sensor, or stops at an end itself (`overflow`), by their columns alone with and without
the range; records that do not show it are left out. Their errors are those of clipped simulations of the last fifth,
relative to its spread. The results are printed as tables in Markdown.
"""

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np

import node_fit
from node_fit.data.clipping import find_ends

ROWS, RESOLUTIONS, NOISES, CLIPPED_SHARE = (100, 300, 1000), (0.0, 1e-3, 1e-2, 5e-2), (0.0, 0.01), 0.15
# Rows of a fitted record, rows for which its input is held, and steps between two rows.
FITTED_ROWS, HELD, STEPS = (400, 1000), 20, 10
Signal = Callable[[np.random.Generator, int], np.ndarray]


def swing(rng: np.random.Generator, rows: int) -> np.ndarray:
    ts, periods = np.arange(rows)[:, None], rng.uniform(20, 200, 3)
    return np.sin(2 * np.pi * ts / periods + rng.uniform(0, 6, 3)) @ rng.uniform(0.3, 1, 3)


def ring_down(rng: np.random.Generator, rows: int) -> np.ndarray:
    ts = np.arange(rows)
    return np.exp(-ts / rows * rng.uniform(1, 5)) * np.sin(2 * np.pi * ts / rng.uniform(10, 100) + 1)


def decay(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.exp(-np.arange(rows) / rows * rng.uniform(3, 15))


def grow(rng: np.random.Generator, rows: int) -> np.ndarray:
    return 1 / (1 + np.exp(-(np.arange(rows) - rows / 3) / rows * rng.uniform(15, 40)))


def lag(rng: np.random.Generator, rows: int) -> np.ndarray:
    """A first-order lag behind an input that jumps some fifteen times."""
    jumps = rng.random(rows) < 15 / rows
    us = rng.uniform(0, 1, rows)[np.maximum.accumulate(np.where(jumps, np.arange(rows), 0))]
    return filter_signal(0.05 * us, 0.95)


def wander(rng: np.random.Generator, rows: int) -> np.ndarray:
    return filter_signal(filter_signal(rng.normal(size=rows), 0.95), 0.95)


def pulse(rng: np.random.Generator, rows: int) -> np.ndarray:
    return filter_signal(np.where(rng.random(rows) < 0.03, rng.uniform(0.5, 1, rows), 0.0), 0.8)


def filter_signal(us: np.ndarray, pole: float) -> np.ndarray:
    ys = us.copy()
    for row in range(1, len(ys)):
        ys[row] += pole * ys[row - 1]
    return ys


SIGNALS: dict[str, Signal] = {
    "swing": swing,
    "ring-down": ring_down,
    "lag": lag,
    "wander": wander,
    "decay": decay,
    "growth": grow,
    "pulses": pulse,
}


def as_read(ys: np.ndarray, step: float) -> np.ndarray:
    return np.round(ys / step) * step if step else ys


def is_found(ys: np.ndarray) -> bool:
    return bool(find_ends(node_fit.Dataset.from_arrays(np.arange(len(ys), dtype=float), ys)))


def count_signals(signals: int, first: int) -> None:
    print("| signal | whole, with a range found | clipped, with the range found |\n|---|---|---|")
    for name, make in SIGNALS.items():
        whole, clipped, count = 0, 0, 0
        for seed in range(first, first + signals):
            for resolution in RESOLUTIONS:
                for noise in NOISES:
                    rng = np.random.default_rng(seed)
                    ys = make(rng, int(rng.choice(ROWS)))
                    spread = ys.std() or 1.0
                    ys = ys + noise * spread * rng.normal(size=len(ys))
                    whole += is_found(as_read(ys, resolution * spread))
                    end = np.quantile(ys, 1 - CLIPPED_SHARE)
                    clipped += is_found(as_read(np.minimum(ys, end), resolution * spread))
                    count += 1
        print(f"| {name} | {whole} of {count} | {clipped} of {count} |")


Rates = Callable[[np.ndarray, float], list[float]]


def choose_system(rng: np.random.Generator, kind: str) -> tuple[Rates, np.ndarray]:
    """Returns the rates and the start of a driven system whose measured state is the first."""
    a, b = rng.uniform(0.5, 1.5), rng.uniform(0.05, 0.3)
    systems: dict[str, tuple[Rates, list[float]]] = {
        "spring": (lambda x, u: [x[1], -a * x[0] - b * x[1] + u], [0, 0]),
        "hard spring": (lambda x, u: [x[1], -a * x[0] - x[0] ** 3 - b * x[1] + 2 * u], [0, 0]),
        "heater": (lambda x, u: [0.3 * (x[1] - x[0]), 0.2 * (1 + u) - 0.1 * a * x[1]], [1, 1]),
        "overflow": (
            lambda x, u: [0.3 * a * (x[1] ** 0.5 - x[0] ** 0.5), 0.3 * (1 + u) - 0.3 * a * x[1] ** 0.5],
            [0.5, 0.5],
        ),
    }
    rates, start = systems[kind]
    return rates, np.asarray(start, float)


def simulate_driven(seed: int, kind: str) -> tuple[node_fit.Dataset, float]:
    """Simulates a record, and returns it with the end of the range."""
    rng = np.random.default_rng(seed)
    rows, (rates, x), step = int(rng.choice(FITTED_ROWS)), choose_system(rng, kind), rng.uniform(0.2, 0.4)
    us = np.repeat(rng.uniform(-1, 1, rows // HELD), HELD)
    starts, end = [x], np.inf
    for _ in range(2):  # The second simulation stops at the end, which the first one gives.
        states = starts[:1]
        for u in us[:-1]:
            x = states[-1]
            for _ in range(STEPS):
                x = x + step / STEPS * np.asarray(rates(x + step / STEPS / 2 * np.asarray(rates(x, u)), u))
                x = np.maximum(x, 1e-6) if kind == "overflow" else x
                x = np.minimum(x, [end, np.inf]) if kind == "overflow" else x
            states.append(x)
        ys = np.array(states)[:, 0]
        end = min(end, float(np.quantile(ys, 1 - CLIPPED_SHARE)))
    noisy = ys + 0.01 * ys.std() * rng.normal(size=rows)
    measured = np.where(ys >= end, end, np.minimum(noisy, end)) if kind == "overflow" else np.minimum(noisy, end)
    return node_fit.Dataset.from_arrays(step * np.arange(rows), measured, us, states=["y"], inputs=["u"]), end


def find_end(seed: int, kind: str) -> bool:
    """Whether the training rows of a record show the end of the range."""
    return bool(node_fit.find_ranges(simulate_driven(seed, kind)[0].split().train))


def compare_fits(fits: int, first: int) -> None:
    print("| system | seed | error with the range | without | seconds with | without |\n|---|---|---|---|---|---|")
    for kind in ("spring", "hard spring", "heater", "overflow"):
        seeds = (seed for seed in itertools.count(first) if find_end(seed, kind))
        for seed in itertools.islice(seeds, fits):
            data, end = simulate_driven(seed, kind)
            cells = []
            for known in (data.clip({"y": (None, end)}), data):
                began, parts = time.perf_counter(), known.split()
                model = node_fit.fit(parts.train, validation=parts.validation).model
                predicted, measured = np.minimum(model.predict(parts.test), end), parts.test.ys
                counts = parts.test.mask & np.isfinite(predicted)
                error = (predicted - measured)[counts].std() / measured[counts].std()
                cells.append((error, time.perf_counter() - began))
            (with_range, seconds), (without, others) = cells
            print(f"| {kind} | {seed} | {with_range:.3f} | {without:.3f} | {seconds:.0f} | {others:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=60)
    parser.add_argument("--fits", type=int, default=0, help="fits of each system")
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    options = parser.parse_args()
    if options.fits:
        compare_fits(options.fits, options.first)
    else:
        count_signals(options.signals, options.first)


if __name__ == "__main__":
    main()
