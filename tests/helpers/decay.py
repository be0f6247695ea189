"""Known equations of a decay, whose constants are fitted."""

import functools

import numpy as np

import node_fit as nf
from helpers.problems import fit_to

EVEN = nf.Solver("heun")


FITTED = functools.partial(nf.Fitted, given=None)


OPTIONS = {"recipe": "direct", "solver": EVEN, "precision": "x64", "ridge": 0.0, "steps": 100}


def known(equations, constants):
    return functools.partial(nf.Known, equations=equations, constants=constants)


def decay(noise, constants=None, equations=None, precision="x64", **options):
    ts = np.linspace(0.0, 3.0, 15)
    rng = np.random.default_rng(1)
    ys = np.stack([np.exp(-ts), 2 * np.exp(-0.5 * ts)], axis=1) * np.exp(noise * rng.standard_normal((15, 2)))
    data = nf.Dataset.from_arrays(ts, ys, states=("x", "y"))
    field = known(equations or {"x": "-a*x", "y": "-b*y"}, constants or {"a": [0.8, 0.0, None], "b": [0.6, 0.0, 0.7]})
    return fit_to(data, field=field, start=FITTED, **{**OPTIONS, "precision": precision, **options})
