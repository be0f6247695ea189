"""Measures ensembles and sweeps.

    python scripts/speed/members_and_sweeps.py [--only members sweep bands devices] [--rounds 3]

prints tables in Markdown. Every measurement runs in processes of its own, on the CPU, without a compile cache. The
contenders take turns, and a figure is the median over the rounds with the extremes in brackets. Measure on an idle
machine. `--gpu` runs `members` on one GPU.

- `members`: seconds per step of Adam on 32 trajectories of `data/oscillator.csv`, for one fit, and for 16 members on
  one and on two devices, by the width of the field; the same on `data/spiral.csv` with width 32; and of L-BFGS on the
  derivatives of the 32 trajectories, where the objective is cheap. Beside Adam's, the share of its time that its matrix
  products would take as fast as `numpy.dot` (the roofline).
- `sweep`: seconds for 4 learning rates by 4 seeds: as 16 processes, two at a time, as a plain multirun, and as a
  vectorized one; start, compilation and plots included.
- `bands`: the share of the held-out test points, noise included, within the 90 % bands of an ensemble.
- `devices`: the largest relative difference of a loss between eight simulated devices and one, in float64,
  over 40 steps of Adam.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
TASKS = ("members", "sweep", "bands", "devices")
WIDTHS = (64, 32, 16, 8)
CHUNK, CHUNKS = 50, 6
RATES, SEEDS = (0.03, 0.01, 0.003, 0.001), (0, 1, 2, 3)
SWEPT = ("data=lynx_hare", "optimizer=adam", "training.steps=300", "compile_cache=false")
SPIRAL, FIFTHS = ("data=spiral", "data.noise=0.05"), ("data.split.validation=0.2", "data.split.test=0.2")
BANDS = {
    "oscillator, noise 10 %": ("data=oscillator", "data.noise=0.1"),
    "pendulum, noise 10 %": ("data=pendulum", "data.noise=0.1"),
    "spiral, noise 5 %, later times held out": (*SPIRAL, "data.split.by=time", *FIFTHS),
    "spiral, noise 5 %, two trajectories held out": (*SPIRAL, "data.split.validation=0.25", "data.split.test=0.25"),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=TASKS, default=TASKS)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--gpu", action="store_true")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        print(json.dumps(CHILDREN[given.child.partition(" ")[0]](*json.loads(given.child.partition(" ")[2]))))
        return
    if given.gpu:
        members(given.rounds, gpu=True)
        return
    for task in given.only:
        {"members": members, "sweep": sweep, "bands": bands, "devices": devices}[task](given.rounds)


def members(rounds: int, gpu: bool = False) -> None:
    for optimizer, title in (
        ("Adam", "Adam, 32 trajectories"),
        ("Adam, spiral", "Adam, spiral"),
        ("LBFGS", "L-BFGS, derivatives of 32 trajectories"),
    ):
        members_with(optimizer, title, rounds, gpu)


def members_with(optimizer: str, title: str, rounds: int, gpu: bool) -> None:
    contenders = ((1, 1), (16, 1)) if gpu else ((1, 1), (16, 1), (16, 2))
    lines = []
    for width in (32,) if optimizer.endswith("spiral") else WIDTHS:
        taken: dict[tuple[int, int], list[float]] = {each: [] for each in contenders}
        shares: dict[tuple[int, int], list[float]] = {each: [] for each in contenders}
        for _ in range(rounds):
            for each in contenders:
                seconds, least = child("step", [*each, width, optimizer], each[1], gpu)
                taken[each].append(seconds)
                shares[each].append(100 * least / seconds)
        for each in contenders:
            ratios = [mine / one for mine, one in zip(taken[each], taken[1, 1], strict=True)]
            figures = spread([1e3 * seconds for seconds in taken[each]]), spread(ratios), spread(shares[each])
            lines.append([width, *each, *(figures[:2] if gpu or optimizer == "LBFGS" else figures)])
    header = ("width", "members", "devices", "ms per step", "times one member's", "% of it in products at best")
    table(title, header if len(lines[0]) == len(header) else header[:-1], lines)


def sweep(rounds: int) -> None:
    taken: dict[str, list[float]] = {"16 processes, two at a time": [], "multirun": [], "sweep=vectorized": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [f"optimizer.learning_rate={rate} seed={seed}".split() for rate in RATES for seed in SEEDS]
            began = time.perf_counter()
            with ThreadPoolExecutor(2) as pool:
                numbered = [(*SWEPT, *job, f"hydra.run.dir={index}") for index, job in enumerate(jobs)]
                list(pool.map(lambda words: command(folder, *words), numbered))
            taken["16 processes, two at a time"].append(time.perf_counter() - began)
            rates, seeds = (",".join(map(str, values)) for values in (RATES, SEEDS))
            for name, kind in (("multirun", "serial"), ("sweep=vectorized", "vectorized")):
                began = time.perf_counter()
                command(
                    folder, "-m", *SWEPT, f"optimizer.learning_rate={rates}", f"seed={seeds}", f"sweep={kind}",
                    f"hydra.sweep.dir={kind}",
                )  # fmt: skip
                taken[name].append(time.perf_counter() - began)
    first = taken["16 processes, two at a time"]
    lines = [
        [name, spread(seconds), spread([one / mine for one, mine in zip(first, seconds, strict=True)])]
        for name, seconds in taken.items()
    ]
    table("4 learning rates by 4 seeds", ("how", "seconds", "times faster"), lines)


def bands(rounds: int) -> None:
    lines = []
    for name, words in BANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            command(folder, *words, "ensemble.size=8", "ensemble.vary=both", "compile_cache=false", "hydra.run.dir=run")
            summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
        covered, metrics = summary["ensemble"]["coverage"], summary["metrics"]
        lines.append(
            [
                name,
                *(f"{covered[split]:.1%}" for split in ("train", "validation", "test")),
                f"{metrics['test']['nrmse']:.3g}",
            ]
        )
        print(*lines[-1], flush=True)  # each takes minutes
    table("90 % bands of 8 members", ("problem", "train", "validation", "test", "test NRMSE"), lines)


def devices(rounds: int) -> None:
    lines = [[name, f"{child('differ', [size], 8):.1e}"] for name, size in (("8 trajectories", 1), ("8 members", 8))]
    table("Eight devices against one, float64", ("spread", "largest relative difference of a loss"), lines)


def step(size: int, count: int, width: int, optimizer: str) -> tuple[float, float]:
    """Median seconds per step, and those of its matrix products alone, as fast as `numpy.dot` on each device."""
    import functools

    import peers
    from chunk_times import Watch

    import node_fit as nf

    ts, ys = peers.oscillator()
    data = nf.Dataset.from_arrays(ts, ys[:32], states=("x", "y"))
    if optimizer.endswith("spiral"):
        data = nf.read_table(str(peers.DATA / "spiral.csv"), time="t", states=["x", "y"], trajectory="trajectory")
    watch, steps = Watch(), CHUNK * CHUNKS
    nf.fit(
        data,
        field=functools.partial(nf.MLP, width=width, depth=2),
        optimizer=nf.Adam(1e-3, schedule="constant"),
        solver=nf.Solver(rtol=1e-3, atol=1e-6),
        training=nf.Training(steps=steps, chunk_steps=CHUNK),
        callbacks=[watch],
        options=nf.Options(
            recipe="direct" if optimizer.startswith("Adam") else [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(), steps)],
            penalty=nf.Penalty(),
            ensemble=nf.Members(size),
            device=nf.Devices(count=count),
        ),
    )
    # Forward, the stages again on the way back, and twice as much for the gradients; Tsit5 has six stages.
    products = 4 * 6 * watch.held * size * 2 * len(data.trajectories) * (4 * width + width**2)
    return statistics.median(watch.chunks) / CHUNK, products / (dot_rate(len(data.trajectories), width) * count)


def dot_rate(rows: int, width: int) -> float:
    """Operations per second of one thread of `numpy.dot` with a square matrix."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    x, matrix = (np.random.default_rng(0).random(shape, np.float32) for shape in ((rows, width), (width, width)))
    taken = []
    with threadpool_limits(1):
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                np.dot(x, matrix)
            taken.append((time.perf_counter() - began) / 200)
    return 2 * rows * width**2 / min(taken)


def differ(size: int) -> float:
    """The largest relative difference of a loss between all devices and one."""
    import peers

    import node_fit as nf

    ts, ys = peers.oscillator()
    data = nf.Dataset.from_arrays(ts, ys[:8], states=("x", "y"))
    # No line search: it decides by comparisons, which a rounding error may flip.
    training = nf.Training(steps=40, chunk_steps=10)
    options = nf.Options(
        optimizer=nf.Adam(), precision="x64", training=training, recipe="direct", ensemble=nf.Members(size)
    )
    one, all_of_them = (
        nf.fit(data, options=dataclasses.replace(options, device=nf.Devices(count=count))).history
        for count in (1, None)
    )
    return max(abs(a.train_loss / b.train_loss - 1) for a, b in zip(one, all_of_them, strict=True))


CHILDREN = {"step": step, "differ": differ}


def child(name: str, arguments: Sequence[int | str], count: int, gpu: bool = False) -> Any:
    """Calls a function of this file in a new process with `count` devices, and returns its result."""
    environment = {**ENVIRONMENT, "JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cuda" if gpu else "cpu"}
    words = [sys.executable, __file__, "--child", f"{name} {json.dumps(list(arguments))}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def command(folder: str, *words: str) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "node_fit", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3g}"
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def table(title: str, header: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    print(f"\n## {title}\n")
    for line in (header, ["---"] * len(header), *lines):
        print("| " + " | ".join(map(str, line)) + " |", flush=True)


if __name__ == "__main__":
    main()
