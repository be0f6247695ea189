"""Eight models in all targets: how far each export is from node_fit.predict, its size, and microseconds a step.

    python scripts/speed/exported_models.py --speed [--models network,stiff] [--targets c,numpy]

fits small models (a minute each), exports them, and prints for each target the largest difference from
`node_fit.predict` and from the model in double precision, solved tightly (shares of the range of a channel), and its
size [kB]. With `--speed`, a step is timed, beside loops over the weights of the network that were written by hand.
"""

import argparse
import functools
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.export.functions import Precision
from node_fit.export.trials import load_module

BRIEF = nf.Training(steps=60, chunk_steps=20)


def network() -> nf.Fit:
    """A network of two hidden layers, of the spiral."""
    data = nf.read_table("data/spiral.csv", time="t", states=["x", "y"], trajectory="trajectory")
    return nf.fit(data.select(range(4)), field=functools.partial(nf.MLP, width=64, depth=2), training=BRIEF)


def driven() -> nf.Fit:
    """A driven mass on a hard spring, of which the position is measured; an encoder reads the velocity."""
    rng, t = np.random.default_rng(0), np.linspace(0.0, 30.0, 301)
    ts, ys, us = [], [], []
    for _ in range(2):
        force = np.repeat(rng.uniform(-1, 1, 31), 10)[:301]

        def rates(now: float, y: np.ndarray, force: np.ndarray = force) -> list[float]:
            return [y[1], float(np.interp(now, t, force)) - 0.5 * y[1] - y[0] - 0.5 * y[0] ** 3]

        found = solve_ivp(rates, (0, 30), [0.3, 0], t_eval=t, rtol=1e-8, atol=1e-10, max_step=0.1)
        ts.append(t)
        ys.append(found.y[:1].T)
        us.append(force[:, None])
    data = nf.Dataset.from_arrays(ts, ys, us, states=["x"], inputs=["force"], units={"x": "m", "force": "N", "t": "s"})
    start = functools.partial(nf.Encoder, rows=10)
    return nf.fit(data, hidden=1, start=start, field=functools.partial(nf.MLP, width=16, depth=1), training=BRIEF)


def known() -> nf.Fit:
    """Lynx and hare, with known equations and logarithmic scales."""
    data = nf.read_table("data/lynx_hare.csv", time="year", states=["hare", "lynx"])
    equations = {"hare": "a*hare - b*hare*lynx", "lynx": "c*hare*lynx - d*lynx"}
    constants = {name: [value, 0, None] for name, value in {"a": 0.5, "b": 0.02, "c": 0.02, "d": 0.8}.items()}
    field = functools.partial(nf.Known, equations=equations, constants=constants)
    scaling = nf.Scaling(log=["hare", "lynx"])
    return nf.fit(data, field=field, start=nf.Fitted, training=BRIEF, options=nf.Options(scaling=scaling, restarts=1))


def hybrid() -> nf.Fit:
    """Growth with an unknown rate of uptake: a network provides it, and the biomass stays within bounds."""
    t = np.linspace(0.0, 10.0, 41)

    def rates(_: float, y: np.ndarray) -> list[float]:
        uptake = 0.8 * y[1] / (0.4 + y[1])
        return [uptake * y[0] * (1 - y[0] / 4), -uptake * y[0] / 2]

    ys = [solve_ivp(rates, (0, 10), [x, s], t_eval=t, rtol=1e-8, atol=1e-10).y.T for x, s in ((0.2, 3), (0.4, 2))]
    data = nf.Dataset.from_arrays(t, ys, states=["biomass", "sugar"])
    equations = {"biomass": "uptake*biomass*(1 - biomass/cap)", "sugar": "-uptake*biomass*y"}
    field = functools.partial(
        nf.Hybrid, equations=equations, constants={"cap": [4, 1, 9], "y": [0.5, 0, None]}, terms={"uptake": 0.5}
    )
    return nf.fit(
        data,
        field=field,
        training=BRIEF,
        options=nf.Options(scaling=nf.Scaling(bounds={"biomass": (0, 5)}, log=["sugar"])),
    )


def stiff() -> nf.Fit:
    """Robertson's reactions."""
    data = nf.read_table("data/robertson.csv", time="t", states=["y1", "y2", "y3"], trajectory=None)
    equations = {"y1": "k3*y2*y3 - k1*y1", "y2": "k1*y1 - k3*y2*y3 - k2*y2**2", "y3": "k2*y2**2"}
    constants = {"k1": [0.05, 0, None], "k2": [2e7, 0, None], "k3": [2e4, 0, None]}
    return nf.fit(
        data,
        field=functools.partial(nf.Known, equations=equations, constants=constants),
        solver=nf.Solver("kvaerno3", max_steps=16384),
        training=nf.Training(steps=5, chunk_steps=5),
        options=nf.Options(recipe="direct"),
    )


def angles() -> nf.Fit:
    """A pendulum, whose angle the network sees by its sine and cosine."""
    t = np.linspace(0.0, 6.0, 61)
    swing = [
        solve_ivp(lambda _, y: [y[1], -np.sin(y[0]) - 0.1 * y[1]], (0, 6), start, t_eval=t, rtol=1e-8, atol=1e-10).y.T
        for start in ([1.0, 0.0], [2.5, 0.3], [0.0, 2.3])
    ]
    data = nf.Dataset.from_arrays(t, swing, states=["angle", "speed"], units={"angle": "rad", "speed": "rad/s"})
    scaling = nf.Scaling(angles=["angle"])
    return nf.fit(data, field=functools.partial(nf.MLP, width=16), training=BRIEF, options=nf.Options(scaling=scaling))


def ensemble() -> nf.Fit:
    """Five networks of the spiral, with a band."""
    data = nf.read_table("data/spiral.csv", time="t", states=["x", "y"], trajectory="trajectory")
    field = functools.partial(nf.MLP, width=16, depth=1)
    train, validation = data.select(range(4)), data.select([4, 5])
    return nf.fit(train, validation=validation, field=field, training=BRIEF, options=nf.Options(ensemble=5))


def doses() -> nf.Fit:
    """A drug that is swallowed several times."""
    t = np.linspace(0.0, 48.0, 49)
    given = [(0.5, 100.0), (12.5, 50.0), (24.5, 100.0)]
    ka, ke, volume = 1.1, 0.18, 25.0
    since = [np.maximum(t - at, 0) for at, _ in given]
    parts = [
        dose / volume * ka / (ka - ke) * (np.exp(-ke * s) - np.exp(-ka * s)) * (t >= at)
        for (at, dose), s in zip(given, since, strict=True)
    ]
    data = nf.Dataset.from_arrays(t, np.sum(parts, axis=0)[:, None], states=["plasma"])
    data = nf.with_events(data, [{"time": at, "state": "gut", "add": dose} for at, dose in given])
    field = functools.partial(
        nf.Known,
        equations={"plasma": "ka*gut/V - ke*plasma", "gut": "-ka*gut"},
        constants={"ka": [0.8, 0, None], "ke": [0.2, 0, None], "V": [20, 0, None]},
    )
    start = functools.partial(nf.Stated, values={"plasma": 0, "gut": 0})
    return nf.fit(data, field=field, hidden=["gut"], start=start, training=BRIEF, options=nf.Options(restarts=1))


MODELS: dict[str, Callable[[], nf.Fit]] = {
    each.__name__: each for each in (network, driven, known, hybrid, stiff, angles, ensemble, doses)
}


def fitted(name: str, folder: Path | None) -> tuple[nf.NeuralODE | nf.Ensemble, nf.Dataset]:
    """The model of a fit and its training data, which a folder keeps for the next time."""
    model, data = (folder / f"{name}{end}" if folder else None for end in (".safetensors", ".pickle"))
    if model and data and model.is_file() and data.is_file():
        return nf.load(model), pickle.loads(data.read_bytes())
    fit = MODELS[name]()
    if model and data:
        nf.save(fit.model, model)
        data.write_bytes(pickle.dumps(fit.data["train"]))
    return fit.model, fit.data["train"]


def row_of(
    model: nf.NeuralODE | nf.Ensemble, data: nf.Dataset, target: str, precision: Precision, folder: Path
) -> list[str]:
    """The cells of a model in a target: largest differences, and the size."""
    try:
        done = nf.export(model, target, folder, data=data, precision=precision, overwrite=True)
    except ValueError as error:
        return [f"{str(error).partition(': ')[2][:60]}", "", ""]
    size = sum(done.files.values()) / 1000
    return [f"{done.from_predict.largest:.1e}", f"{done.difference.largest:.1e}", f"{size:.3g}"]


TIMED = """\
#include "model.h"
#include <stdio.h>
#include <time.h>
int main(void)
{
    static double y[MODEL_ALL_STATES], u[MODEL_INPUTS + 1];
    const double first[] = {%s}, input[] = {%s};
    double sum = 0;
    for (int i = 0; i < MODEL_INPUTS; i++)
        u[i] = input[i];
    const clock_t begin = clock();
    for (int n = 0; n < %d; n++) {
        for (int i = 0; i < MODEL_ALL_STATES; i++)
            y[i] = first[i] * (1 + 1e-9 * (n %% 7));
        model_step(%r, %r, u, u, y);
        sum += y[0];
    }
    printf("%%.6g %%g\\n", 1e6 * (double)(clock() - begin) / CLOCKS_PER_SEC / %d, sum);
    return 0;
}
"""


def seconds_of(function: Callable[[], object], least: float = 0.3) -> float:
    """Seconds of a call, the median of several."""
    found: list[float] = []
    while sum(found) < least or len(found) < 3:
        begin = time.perf_counter()
        function()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


def speeds(model: nf.NeuralODE | nf.Ensemble, data: nf.Dataset, root: Path) -> list[str]:
    """Microseconds of a step of C, NumPy, ONNX, and node_fit.predict of one record."""
    record = data.select([0])
    begin = float(record.ts[0, 0])
    module = load_module(root / "numpy" / "model.py")
    given = record.ts[0], record.ys[0], record.us[0]
    known = isinstance(model.typical.start, nf.Fitted)
    start = [20.0, 20.0] if known else module.start(*given)[1]
    gap = float(np.median(np.diff(record.ts[0, : record.lengths[0]])))
    count = max(module.FEWEST_STEPS, int(np.ceil(gap / module.LONGEST_STEP * (1 - 1e-9))))
    repeats, first = 2000, record.us[0, 0] if data.inputs else [0.0]
    numbers = lambda values: ", ".join(repr(float(each)) for each in values)  # noqa: E731
    text = TIMED % (numbers(start), numbers(first), repeats, begin, gap, repeats)
    (root / "c" / "timed.c").write_text(text)
    subprocess.run(["gcc", "-std=c99", "-O2", "timed.c", "model.c", "-lm", "-o", "timed"], cwd=root / "c", check=True)
    c = min(float(subprocess.check_output([root / "c" / "timed"], text=True).split()[0]) for _ in range(3)) / count
    us = (record.us[0, 0],) if data.inputs else ()
    numpy = 1e6 * seconds_of(lambda: module.step(begin, gap, start, *us)) / count
    onnx = "-"
    if (root / "onnx" / "step.onnx").is_file():
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(root / "onnx" / "step.onnx", options)
        fed = {"t": [[begin]], "h": [[gap / count]], "y": [start], "u": record.us[:1, 0], "v": record.us[:1, 0]}
        fed = {each.name: np.asarray(fed[each.name], float) for each in session.get_inputs()}
        onnx = f"{1e6 * seconds_of(lambda: session.run(None, fed)):.3g}"
    model.predict(record)
    predict = 1e6 * seconds_of(lambda: model.predict(record)) / (int(record.lengths[0]) - 1) / count
    return [f"{c:.3g}", f"{numpy:.3g}", onnx, f"{predict:.3g}"]


BY_HAND = """\
#include <math.h>
#include <stdio.h>
#include <time.h>
#define W 64
static const double w1[W][2] = {%s}, b1[W] = {%s}, w2[W][W] = {%s}, b2[W] = {%s}, w3[2][W] = {%s}, b3[2] = {%s};
static void field(const double *z, double *rates)
{
    double x[W], y[W];
    for (int i = 0; i < W; i++) {
        double sum = b1[i];
        for (int k = 0; k < 2; k++)
            sum += w1[i][k] * z[k];
        x[i] = tanh(sum);
    }
    for (int i = 0; i < W; i++) {
        double sum = b2[i];
        for (int k = 0; k < W; k++)
            sum += w2[i][k] * x[k];
        y[i] = tanh(sum);
    }
    for (int i = 0; i < 2; i++) {
        double sum = b3[i];
        for (int k = 0; k < W; k++)
            sum += w3[i][k] * y[k];
        rates[i] = sum;
    }
}
int main(void)
{
    double sum = 0;
    const clock_t begin = clock();
    for (int n = 0; n < 12000; n++) {
        double z[2] = {0.3 + 1e-9 * n, -0.2}, rates[2];
        field(z, rates);
        sum += rates[0];
    }
    printf("%%.6g %%g\\n", 1e6 * (double)(clock() - begin) / CLOCKS_PER_SEC / 2000, sum);
    return 0;
}
"""


def by_hand(model: nf.NeuralODE | nf.Ensemble, folder: Path) -> float:
    """Microseconds of the six field evaluations of a step in loops that were written by hand, without all else."""
    layers = model.typical.field.network.layers  # pyright: ignore[reportFunctionMemberAccess]
    numbers = [",".join(repr(float(x)) for x in np.ravel(a)) for each in layers for a in (each.weight, each.bias)]
    (folder / "hand.c").write_text(BY_HAND % tuple(numbers))
    words = ["gcc", "-std=c99", "-O2", "-Wno-missing-braces", "hand.c", "-lm", "-o", "hand"]
    subprocess.run(words, cwd=folder, check=True)
    return min(float(subprocess.check_output([folder / "hand"], text=True).split()[0]) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default="c,c:float,numpy,onnx,onnx:float,stablehlo,stablehlo:float,fmu,sympy")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the fitted models for the next time")
    parser.add_argument("--speed", action="store_true", help="time a step too")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in given.models.split(","):
        model, data = fitted(name, given.keep)
        with tempfile.TemporaryDirectory() as place:
            for each in given.targets.split(","):
                target, _, precision = each.partition(":")
                cells = row_of(
                    model, data, target, cast(Precision, precision or "double"), Path(place) / each.replace(":", "_")
                )
                print(f"| {name} | {each} | {' | '.join(cells)} |", flush=True)
            if given.speed:
                found = speeds(model, data, Path(place))
                hand = f"{by_hand(model, Path(place)):.3g}" if name == "network" else ""
                lines.append(f"| {name} | {' | '.join(found)} | {hand} |")
    if lines:
        print("\n| microseconds a step | C | NumPy | ONNX | node_fit.predict | by hand |\n|---|---|---|---|---|---|")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
