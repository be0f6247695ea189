"""Posteriors by the No-U-Turn Sampler: R-hat, effective draws, seconds.

    python scripts/accuracy/posterior.py                      # a decay, beside quadrature
    python scripts/accuracy/posterior.py problem.yaml         # a PEtab problem, from its best fit of several starts
    python scripts/accuracy/posterior.py theophylline.csv     # a population with three effects, in NONMEM's columns

The table has a row for each constant: median and 95 % interval, and for the decay those of quadrature on a grid.
"""

import argparse
import functools
import time
from pathlib import Path

import numpy as np

import node_fit


def decay(settings):
    """A decay with noise that is to be estimated, and its posterior by quadrature."""
    ts = np.linspace(0, 5, 12)
    ys = 10 * np.exp(-0.5 * ts) + np.random.default_rng(0).standard_normal(12)
    data = node_fit.Dataset.from_arrays(ts, ys[None, :, None], states=["c"])
    field = functools.partial(node_fit.Known, equations={"c": "-k*c"}, constants={"k": [0.3, 0, None]})
    fit = node_fit.fit(data, field=field, start="fitted", options=node_fit.Options(precision="x64", effort="quick"))
    posterior = node_fit.sample(fit, **settings)
    logs, starts = np.linspace(-2.5, 1.0, 2001), np.linspace(0, 20, 801)
    mean = starts[None, :, None] * np.exp(-np.exp(logs)[:, None, None] * ts)
    values = -len(ts) / 2 * np.log(((ys - mean) ** 2).sum(axis=2))
    weights = np.exp(values - values.max()).sum(axis=1)
    exact = np.exp(np.interp([0.025, 0.5, 0.975], np.cumsum(weights) / weights.sum(), logs))
    return posterior, {"k": exact}


def problem(path, starts, settings):
    """A PEtab problem, of which several starts are fitted first."""
    began = time.perf_counter()
    fit = node_fit.fit_petab(node_fit.read_petab(path), restarts=starts)
    print(f"fitted in {time.perf_counter() - began:.1f} s: log-likelihood {fit.log_likelihood:.3f}", flush=True)
    return node_fit.sample(fit, **settings), {}


def population(path, settings):
    """One compartment with absorption, three log-normal effects, additive noise."""
    table = node_fit.NONMEM(path=path, time="TIME", trajectory="ID", compartments=["depot", "c"], states=["c"])
    equations = {"depot": "-ka*depot", "c": "ka*depot/v - cl/v*c"}
    field = functools.partial(node_fit.Known, equations=equations, constants=dict.fromkeys(("ka", "cl", "v"), 1.0))
    return node_fit.sample(
        node_fit.fit_population(table.read(path), random=["ka", "cl", "v"], field=field), **settings
    ), {}


def draw(given, settings):
    """Draws, and quantiles by quadrature where they are known."""
    if given.data is None:
        return decay(settings)
    if given.data.suffix == ".csv":
        return population(str(given.data), settings)
    return problem(given.data, given.starts, settings)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--starts", type=int, default=3)
    for name, value in (("draws", 1000), ("chains", 4), ("warmup", 500), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--acceptance", type=float, default=0.8)
    given = parser.parse_args()
    settings = {key: getattr(given, key) for key in ("draws", "chains", "warmup", "acceptance", "seed")}
    posterior, exact = draw(given, settings)
    print(f"{'constant':24} {'median':>11} {'2.5 %':>11} {'97.5 %':>11} {'R-hat':>7} {'effective':>9}")
    for name, (low, middle, high) in posterior.quantiles().items():
        rhat, effective = posterior.rhat[name], posterior.effective[name]
        print(f"{name:24} {middle:11.5g} {low:11.5g} {high:11.5g} {rhat:7.4f} {effective:9.0f}")
        if name in exact:
            low, middle, high = exact[name]
            print(f"{'  by quadrature':24} {middle:11.5g} {low:11.5g} {high:11.5g}")
    least = min(posterior.effective.values())
    print(posterior.sentence)
    print(
        f"{posterior.seconds:.1f} s in all, {posterior.sampling_seconds:.1f} s of draws; at least "
        f"{least / posterior.seconds:.3g} effective draws a second, {least / posterior.sampling_seconds:.3g} of draws"
    )


if __name__ == "__main__":
    main()
