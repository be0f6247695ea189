"""How seconds and memory grow with the data and the model.

    python scripts/speed/growth.py [--only AXIS ...] [--quick]

One axis grows at a time, from 32 trajectories of 100 rows, 2 states and a network of width 32; `rows` are those of a
single record, in windows of 100 rows. Each size runs in a process of its own: seconds of one gradient of the loss (a
step of Adam on all data) and of a prediction of all rows, both after compiling, and the largest memory of the process.
An exponent is the slope of the logarithm from the third largest size to the largest: 1 is linear. The picture is
`docs/growth.png`.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

BASE = {"trajectories": 32, "rows": 100, "states": 2, "width": 32}
SIZES = {
    "trajectories": (1, 10, 100, 1_000, 10_000, 100_000),
    "rows": (100, 1_000, 10_000, 100_000, 1_000_000),
    "states": (2, 5, 10, 20, 50, 100),
    "width": (8, 16, 32, 64, 128, 256),
}
FIGURES = {"gradient": "gradient [s]", "predict": "prediction [s]", "memory": "memory [MB]"}
PICTURE = Path(__file__).parents[2] / "docs" / "growth.png"
STEPS, WINDOW, SPACING = 3, 100, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--quick", action="store_true", help="without the largest size, and no picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(json.loads(options.one))))
        return
    found = {}
    for axis in options.only:
        sizes = SIZES[axis][:-1] if options.quick else SIZES[axis]
        found[axis] = {size: in_process({**BASE, axis: size}, axis) for size in sizes}
        report(axis, found[axis])
    if not options.quick and set(found) == set(SIZES):
        draw(found)


def in_process(size: dict[str, int], axis: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", json.dumps({**size, "axis": axis})]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def one(given: dict[str, Any]) -> dict[str, float]:
    """Measures one size, in this process."""
    import functools

    from chunk_times import Watch

    import node_fit as nf

    single = given["axis"] == "rows"
    data = oscillations(1 if single else given["trajectories"], given["rows"], given["states"])
    window = WINDOW if single and given["rows"] > WINDOW else None
    watch = Watch()
    fit = nf.fit(
        data,
        field=functools.partial(nf.MLP, width=given["width"]),
        optimizer=nf.Adam(1e-3),
        training=nf.Training(steps=3 * STEPS, chunk_steps=STEPS, window=window),
        callbacks=[watch],
        progress=False,
        options=nf.Options(recipe="direct", penalty=nf.Penalty()),
    )
    fit.model.predict(data)
    begin = time.perf_counter()
    fit.model.predict(data)
    return {
        "gradient": statistics.median(watch.chunks) / STEPS,
        "predict": time.perf_counter() - begin,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def oscillations(trajectories: int, rows: int, states: int):
    """Damped rotations of pairs of states; an odd last state decays."""
    import node_fit as nf

    rng, ts = np.random.default_rng(0), SPACING * np.arange(rows)
    phases = rng.uniform(0, 2 * np.pi, (trajectories, 1, states))
    # A record that goes on must not die out.
    damping = 0.2 if rows <= WINDOW else 0.0
    pairs = np.arange(states)
    angle = ts[None, :, None] * (1 + 0.5 * (pairs // 2) / max(states, 1)) + phases[:, :, pairs // 2 * 2]
    ys = np.where(pairs % 2, np.sin(angle), np.cos(angle)) * np.exp(-damping * ts)[None, :, None]
    return nf.Dataset.from_arrays(ts, ys)


def exponent(found: dict[int, dict[str, float]], figure: str) -> float:
    """The slope of the logarithm from the third largest size to the largest."""
    sizes = list(found)
    first, last = sizes[-3], sizes[-1]
    return float(np.log(found[last][figure] / found[first][figure]) / np.log(last / first))


def report(axis: str, found: dict[int, dict[str, float]]) -> None:
    print(f"\n| {axis} | {' | '.join(FIGURES.values())} |\n|---|---|---|---|")
    for size, row in found.items():
        print(f"| {size:,} | {row['gradient']:.2g} | {row['predict']:.2g} | {row['memory']:.0f} |")
    print(f"| exponent | {' | '.join(f'{exponent(found, figure):.2f}' for figure in FIGURES)} |", flush=True)


def draw(found: dict[str, dict[int, dict[str, float]]]) -> None:
    from node_fit.plots.curves import ACCENTS, new_figure, save_figure, use_style

    with use_style():
        figure = new_figure(7.2, 2.6)
        for axis, (name, rows) in zip(figure.subplots(1, 4), found.items(), strict=True):
            for key, colour in zip(("gradient", "predict"), ACCENTS, strict=False):
                axis.loglog(
                    list(rows), [row[key] for row in rows.values()], "o-", color=colour, markersize=3, label=key
                )
            axis.set(xlabel=name)
        figure.axes[0].set(ylabel="s")
        figure.axes[0].legend()
        save_figure(figure, PICTURE)


if __name__ == "__main__":
    main()
