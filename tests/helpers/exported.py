"""Small models that are exported, and the records that they are checked on."""

import functools

import equinox as eqx
import jax
import numpy as np

import node_fit as nf

HOSTILE = ('x*/ system("echo pwned > pwned"); /*', 'y"; import os; os.system("echo pwned > pwned") #\n??/', "u`<&>'\\")
SCALED = nf.Scaling(log=["x"], bounds={"v": (-9.0, 9.0)})
DECAY = {"equations": {"x": "-k*x + f", "v": "x - 40*v"}, "constants": {"k": [0.4, 0.0, None]}}


def records(**options) -> nf.Dataset:
    """Two driven records of two channels, of which some values are missing."""
    ts = np.linspace(2.0, 4.0, 21)
    ys = np.stack([np.stack([np.exp(-ts) * a + 2, np.cos(ts) * a], -1) for a in (1.0, 1.5)])
    ys[0, 4, 0] = ys[1, 0, 1] = np.nan
    us = np.stack([np.sin(3 * ts) + a for a in (0, 1)])[..., None]
    names = {"states": ["x", "v"], "inputs": ["f"], "units": {"x": "m", "t": "s"}} | options
    return nf.Dataset.from_arrays(ts, ys, us, **names)


def single() -> nf.Dataset:
    """Two records of one channel without inputs."""
    ts = np.linspace(0.0, 1.0, 9)
    return nf.Dataset.from_arrays(ts, np.stack([a * np.exp(-ts)[:, None] for a in (1.0, 2.0)]), states=["x"])


def stirred(model: nf.NeuralODE, scale: float = 0.3) -> nf.NeuralODE:
    """A model with random numbers in all parts that begin at zero."""
    keys = iter(jax.random.split(jax.random.key(1), 100))
    return eqx.tree_at(
        lambda m: jax.tree.leaves((m.start, m.observation)),
        model,
        replace_fn=lambda x: x + scale * jax.random.normal(next(keys), x.shape) if eqx.is_inexact_array(x) else x,
    )


def network(data: nf.Dataset | None = None, **options) -> tuple[nf.NeuralODE, nf.Dataset]:
    """A small network, or another field, and its records."""
    data = records() if data is None else data
    given = {"field": functools.partial(nf.MLP, width=6, depth=1)} | options
    return stirred(nf.make_model(data, key=jax.random.key(0), **given)), data


def bounce() -> tuple[nf.NeuralODE, nf.Dataset]:
    """A ball that bounces off the floor, gets a kick at one time, and is put to a height at another."""
    ts = np.linspace(0, 2.0, 21)
    ys = np.stack([1 - ts / 4, np.cos(ts)], -1)
    events = [{"time": 1.0, "state": "v", "add": 1.5}, {"time": 1.7, "state": "h", "set": 0.5}]
    data = nf.with_events(nf.Dataset.from_arrays(ts, ys, states=["h", "v"]), events)
    field = functools.partial(
        nf.Known,
        equations={"h": "v", "v": "-g"},
        constants={"g": [9.81, 0.0, None]},
        triggers=[{"when": "h", "set": {"v": "-0.8*v"}}],
    )
    return nf.make_model(data, field=field, key=jax.random.key(0)), data


def counting() -> tuple[nf.NeuralODE, nf.Dataset]:
    """A decay to which three triggers add, whose levels are zero at times of rows."""
    ts = 0.3 + 0.25 * np.arange(25)
    ys = np.stack([3 * np.exp(-(ts - 0.3) / 10) + 1, np.linspace(0, 3, 25)], 1)
    data = nf.Dataset.from_arrays(ts, ys, states=["x", "n"])
    triggers = [{"when": f"{float(ts[row])!r} - t", "set": {"x": "x + 1", "n": "n + 1"}} for row in (7, 12, 20)]
    field = functools.partial(nf.Known, equations={"x": "-x/10", "n": "0"}, triggers=triggers)
    return nf.make_model(data, field=field, key=jax.random.key(0)), data
