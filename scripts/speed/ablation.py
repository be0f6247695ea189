"""Measures how much each part of the recipe contributes: `python scripts/speed/ablation.py`.

    python scripts/speed/ablation.py [--only cold parts] [--problems spiral ...] [--variants default ...] [--json FILE]

prints tables in Markdown. Every line of a table runs in processes of its own, on the CPU, without a compile cache.

- `cold`: seconds from the start of the process, import and compilation included, to a target: a validation NRMSE of
  1 % on the oscillator (at tight tolerances), a training loss of 1e-6 on the spiral with L-BFGS and with
  Levenberg-Marquardt, and 1e-8 with the latter. One process per seed.
- `parts`: problems with the default recipe, and with parts of it removed or changed; the seeds of a line share a
  process. A fit stops after `LIMIT` seconds of training, not counting compilation. The error compares simulated
  trajectories with the noise-free truth, on held-out trajectories (on the training ones if there is a single record),
  divided by the truth's standard deviation. A fit is flat if it explains less than a tenth of the variance of its
  training data.

The script reads `data/*.csv` and adds noise from a fixed seed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).parents[2] / "data"
LIMIT = 20.0
Row = dict[str, Any]

# For each problem: columns, width of the field, noise in standard deviations, ridge.
PROBLEMS: dict[str, Row] = {
    "oscillator": {"states": "xy"},
    "oscillator, noise 5 %": {"states": "xy", "noise": 0.05},
    "spiral": {"states": "xy", "width": 32},
    "spiral, noise 5 %": {"states": "xy", "width": 32, "noise": 0.05},
    "pendulum": {"states": ("angle", "velocity"), "inputs": ("torque",)},
    "lorenz, noise 1 %": {"states": "xyz", "noise": 0.01},
    "lynx_hare": {"states": ("hare", "lynx"), "time": "year", "log": ("hare", "lynx"), "ridge": 0.1},
}
VARIANTS = (
    "default",
    "no derivative stage",
    "shooting for the derivative stage",
    "growing horizon, no derivative stage",
    "adaptive steps",
    "no main stage",
    "Adam",
    "Adam, no derivative stage",
    "LM",
    "LM, no derivative stage",
)
# Targets: problem, kind of figure, value, precision, optimizer.
COLD: dict[str, tuple[str, str, float, Literal["x32", "x64"], str]] = {
    "oscillator, validation NRMSE 1 %, L-BFGS": ("oscillator", "nrmse", 0.01, "x32", "LBFGS"),
    "spiral, training loss 1e-6, L-BFGS": ("spiral", "loss", 1e-6, "x64", "LBFGS"),
    "spiral, training loss 1e-6, LM": ("spiral", "loss", 1e-6, "x64", "LM"),
    "spiral, training loss 1e-8, LM": ("spiral", "loss", 1e-8, "x64", "LM"),
}


def load(problem: str):
    """Splits with noise on training and validation states, and the noise-free training and test data."""
    import dataclasses

    import numpy as np

    import node_fit

    about = PROBLEMS[problem]
    name = problem.split(",")[0]
    single = name == "lynx_hare"
    table = node_fit.read_table(
        str(DATA / f"{name}.csv"),
        time=about.get("time", "t"),
        states=list(about["states"]),
        inputs=list(about.get("inputs", ())),
        trajectory=None if single else "trajectory",
    )
    if single:
        train = node_fit.Split(by="time", validation=0.0, test_from=1914)(table).train
        return train, None, train, train
    few = len(table.trajectories) < 12
    split: Any = node_fit.Split(by="trajectory", validation=0.0 if few else 0.1, test=0.25 if few else 0.1)(table)
    rng = np.random.default_rng(0)
    scale = about.get("noise", 0.0) * np.nanstd(table.ys, axis=(0, 1))

    def noisy(data):
        return dataclasses.replace(data, ys=data.ys + scale * rng.standard_normal(data.ys.shape))

    validation = None if split.validation is None else noisy(split.validation)
    return noisy(split.train), validation, split.train, split.test


def optimizer_of(name: str):
    import node_fit

    if name.startswith("Adam"):
        return node_fit.Adam(1e-2, schedule="constant")
    return node_fit.LevenbergMarquardt() if name.startswith("LM") else node_fit.LBFGS()


def recipe_of(variant: str):
    import node_fit

    plan, main = node_fit.Plan, node_fit.Plan()
    if variant == "shooting for the derivative stage":
        shooting = plan(partial(node_fit.MultipleShooting, rows=10), node_fit.LBFGS(), 500)
        return node_fit.Recipe({"shooting": shooting, "main": main})
    if variant == "growing horizon, no derivative stage":
        growing = plan(partial(node_fit.TrajectoryMatching, horizon=0.1), steps=700)
        return node_fit.Recipe({"growing": growing, "main": main})
    if variant == "no main stage":
        return node_fit.Recipe({"derivative": plan(node_fit.DerivativeMatching, node_fit.LBFGS(), 300)})
    return "direct" if "no derivative" in variant else "default"


def parts(problem: str, variant: str, seeds: int, limit: float) -> list[Row]:
    """Fits one problem with one variant."""
    import numpy as np
    from chunk_times import Watch

    import node_fit

    about = PROBLEMS[problem]
    train, validation, truth, test = load(problem)
    rows = []
    for seed in range(seeds):
        watch = Watch(limit=limit)
        fit = node_fit.fit(
            train,
            validation=validation,
            field=partial(node_fit.MLP, width=about.get("width", 64)),
            optimizer=optimizer_of(variant),
            solver=node_fit.Solver(stepping="adaptive" if variant == "adaptive steps" else None),
            callbacks=[watch],
            options=node_fit.Options(
                recipe=recipe_of(variant),
                scaling=node_fit.Scaling(log=about.get("log", ())),
                penalty=node_fit.Penalty(ridge=about.get("ridge", 0.0)),
                precision="x32",
                device="cpu",
                seed=seed,
            ),
        )
        predicted = fit.predict(test)
        trained = fit.score(truth)
        # Held-out trajectories start at their true first row, training trajectories at their measured one.
        held = fit.score(test).nrmse if np.isfinite(predicted[test.valid]).all() else float("inf")
        rows.append(
            {
                "error": held,
                "flat": not trained.r2 > 0.1,
                "seconds": sum(watch.chunks),
                "steps": fit.steps,
                "diagnosis": fit.diagnose(train).kind,
            }
        )
    return rows


def cold(name: str, seed: int, started: float) -> Row:
    """Seconds from the start of the process to a target."""
    from chunk_times import Watch

    import node_fit
    from node_fit.data.scaling import Scaler

    problem, kind, target, precision, optimizer = COLD[name]
    if problem == "spiral":
        # All eight trajectories, because the target is a training loss.
        train = node_fit.read_table(str(DATA / "spiral.csv"), time="t", states=["x", "y"], trajectory="trajectory")
        validation, watch = None, Watch(limit=60.0, train_loss=target)
    else:
        train, validation, _, _ = load(problem)
        assert validation is not None
        scale = Scaler.from_dataset(train).state_scale / validation.ys.std(axis=(0, 1))
        # Below this loss in scaled units the NRMSE is below the target in every channel.
        watch = Watch(limit=60.0, validation_loss=float(target**2 / (scale**2).max()))
    fit = node_fit.fit(
        train,
        validation=validation,
        field=partial(node_fit.MLP, width=PROBLEMS[problem].get("width", 64)),
        optimizer=optimizer_of(optimizer),
        solver=node_fit.Solver(rtol=1e-6) if kind == "loss" else node_fit.Solver(),
        callbacks=[watch],
        options=node_fit.Options(
            prediction_solver=node_fit.Solver(rtol=1e-7, atol=1e-9, stepping="adaptive"),
            precision=precision,
            device="cpu",
            seed=seed,
        ),
    )
    reached = None if watch.reached_at is None else watch.reached_at - started
    figure = fit.score(validation).nrmse if validation is not None else min(r.train_loss for r in fit.history)
    return {"seconds": reached, "figure": figure}


def measure(request: Row) -> Any:
    """Runs one request in a new process."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    timed = {"started": time.time()} if request["task"] == "cold" else {}
    command = [sys.executable, __file__, "--request", json.dumps({**request, **timed})]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{request} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})" if values else "-"


def cold_table(results: dict[str, list[Row]]) -> str:
    lines = ["| figure | seconds: median (range) | reached | at the end |", "|---|---|---|---|"]
    for name, rows in results.items():
        reached = [row["seconds"] for row in rows if row["seconds"] is not None]
        figures = spread([row["figure"] for row in rows])
        lines.append(f"| {name} | {spread(reached)} | {len(reached)} of {len(rows)} | {figures} |")
    return "\n".join(lines)


def parts_table(results: dict[tuple[str, str], list[Row]]) -> str:
    lines = ["| problem | recipe | error: median (range) | flat | seconds | diagnosis |", "|---|---|---|---|---|---|"]
    for (problem, variant), rows in results.items():
        flat = f"{sum(row['flat'] for row in rows)} of {len(rows)}"
        seconds = spread([row["seconds"] for row in rows])
        diagnoses = ", ".join(sorted({row["diagnosis"] for row in rows}))
        error = spread([row["error"] for row in rows])
        lines.append(f"| {problem} | {variant} | {error} | {flat} | {seconds} | {diagnoses} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures how much each part of the recipe contributes.")
    parser.add_argument("--only", nargs="+", choices=("cold", "parts"), default=["cold", "parts"])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds of training per fit ({LIMIT:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all measurements")
    parser.add_argument("--request", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.request:
        request = json.loads(options.request)
        print(json.dumps({"cold": cold, "parts": parts}[request.pop("task")](**request)))
        return
    results: dict[str, dict] = {"cold": {}, "parts": {}}

    def keep() -> None:
        if options.json is not None:
            options.json.write_text(json.dumps({key: list(part.items()) for key, part in results.items()}, indent=1))

    if "cold" in options.only:
        # One seed after another, so that other load on the machine affects all targets alike.
        results["cold"] = {name: [] for name in COLD}
        for seed in range(options.seeds):
            for name in COLD:
                results["cold"][name].append(measure({"task": "cold", "name": name, "seed": seed}))
                keep()
        print(cold_table(results["cold"]), end="\n\n", flush=True)
    if "parts" in options.only:
        for problem in options.problems:
            for variant in options.variants:
                request = {"problem": problem, "variant": variant, "seeds": options.seeds, "limit": options.limit}
                results["parts"][problem, variant] = measure({"task": "parts", **request})
                keep()
        print(parts_table(results["parts"]))


if __name__ == "__main__":
    main()
