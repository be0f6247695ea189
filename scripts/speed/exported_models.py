"""Eight models in all targets: how far each export is from node_fit.predict, its size, and microseconds a step.

    python scripts/speed/exported_models.py [--models network,stiff] [--targets c,numpy] [--precision double]

fits small models (a minute each), exports them, and prints a table. The speed of C is measured beside that of a loop
over the same weights that was written by hand (`--loop`).
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

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
    return nf.fit(data, field=field, scaling=scaling, start=nf.Fitted, training=BRIEF, starts=1)


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
    return nf.fit(data, field=field, scaling=nf.Scaling(bounds={"biomass": (0, 5)}, log=["sugar"]), training=BRIEF)


def stiff() -> nf.Fit:
    """Robertson's reactions."""
    data = nf.read_table("data/robertson.csv", time="t", states=["y1", "y2", "y3"], trajectory=None)
    equations = {"y1": "k3*y2*y3 - k1*y1", "y2": "k1*y1 - k3*y2*y3 - k2*y2**2", "y3": "k2*y2**2"}
    constants = {"k1": [0.05, 0, None], "k2": [2e7, 0, None], "k3": [2e4, 0, None]}
    return nf.fit(
        data,
        field=functools.partial(nf.Known, equations=equations, constants=constants),
        solver=nf.Solver("kvaerno3", max_steps=16384),
        recipe="direct",
        training=nf.Training(steps=5, chunk_steps=5),
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
    return nf.fit(data, field=functools.partial(nf.MLP, width=16), scaling=scaling, training=BRIEF)


def ensemble() -> nf.Fit:
    """Five networks of the spiral, with a band."""
    data = nf.read_table("data/spiral.csv", time="t", states=["x", "y"], trajectory="trajectory")
    field = functools.partial(nf.MLP, width=16, depth=1)
    train, validation = data.select(range(4)), data.select([4, 5])
    return nf.fit(train, validation=validation, field=field, ensemble=5, training=BRIEF)


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
    return nf.fit(data, field=field, hidden=["gut"], start=start, training=BRIEF, starts=1)


MODELS: dict[str, Callable[[], nf.Fit]] = {
    each.__name__: each for each in (network, driven, known, hybrid, stiff, angles, ensemble, doses)
}


def fitted(name: str, folder: Path) -> tuple[nf.NeuralODE | nf.Ensemble, nf.Dataset]:
    """The model of a fit and its training data; the model is kept in a folder for the next time."""
    fit = MODELS[name]()
    nf.save(fit.model, folder / f"{name}.safetensors")
    return fit.model, fit.data["train"]
