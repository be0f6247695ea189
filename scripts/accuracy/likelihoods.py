"""Counts what likelihoods recover: limits of detection, counts of an epidemic, formulas of the noise.

    python scripts/accuracy/likelihoods.py [--draws 100] [--only limits]

prints a table in Markdown. Records that differ only in their noise are simulated and fitted in one process, whose
programs are compiled once: `bias` is the mean of the estimates over the true value, less one; `covered` the share of
95 % intervals that hold it.

- `limits`: a decay of 30 rows with log-normal noise of 30 %, a fifth of whose values lie below a limit: censored, with
  half the limit in their place, and left out.
- `counts`: an epidemic (susceptible, infected), whose infected are counted with Poisson's noise.
- `formula`: a decay with `s0 + s1*y` as standard deviation.
"""

import argparse
import functools
import time

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

DECAY = functools.partial(nf.Known, equations={"c": "-k*c"}, constants={"k": [0.3, 0, None]})
RATE, LIMIT_SHARE = 0.5, 0.2


def fit(data, field, **options):
    made = nf.Options(precision="x64", effort="quick", **options)
    return nf.fit(data, field=field, start="fitted", optimizer="lm", options=made)


def decay_with_limit(rng, kind):
    """A decay whose last fifth or so lies below a limit."""
    ts = np.linspace(0, 6, 30)
    ys = 20 * np.exp(-RATE * ts + 0.3 * rng.standard_normal(30))
    limit = 20 * np.exp(-RATE * ts[int((1 - LIMIT_SHARE) * 30)])
    below = ys < limit
    marks = -below.astype(int) if kind == "censored" else np.zeros(30, int)
    value = {"censored": limit, "half the limit": limit / 2, "left out": np.nan}[kind]
    shaped = np.where(below, value, ys)[None, :, None]
    return nf.Dataset.from_arrays(
        ts, shaped, states=["c"], censored=marks[None, :, None] if kind == "censored" else None
    )


def limits(rng, kind):
    found = fit(decay_with_limit(rng, kind), DECAY, scaling=nf.Scaling(log=["c"]))
    return found, {"k": RATE}


def epidemic(rng, kind):
    """Infected of 1000, counted daily; what has not been counted is the number of susceptible."""
    true, ts = {"beta": 0.6, "gamma": 0.2}, np.arange(0.0, 40.0)

    def rates(t, y):
        new = true["beta"] * y[0] * y[1] / 1000
        return [-new, new - true["gamma"] * y[1]]

    clean = solve_ivp(rates, (0, 39), [990.0, 10.0], t_eval=ts, rtol=1e-9, atol=1e-9).y[1]
    data = nf.Dataset.from_arrays(ts, rng.poisson(clean).astype(float)[None, :, None], states=["I"])
    field = functools.partial(
        nf.Known,
        equations={"I": "beta*S*I/1000 - gamma*I", "S": "-beta*S*I/1000"},
        constants={"beta": [0.4, 0, None], "gamma": [0.1, 0, None]},
    )
    start = functools.partial(nf.Fitted, absent={"S": 990.0})
    made = nf.Options(
        precision="x64", effort="quick", loss="poisson" if kind == "poisson" else "squares", hidden=("S",)
    )
    return nf.fit(data, field=field, start=start, optimizer="lm", options=made), true


def formula(rng, kind):
    ts = np.linspace(0, 6, 60)
    clean = 20 * np.exp(-RATE * ts)
    ys = clean + (0.1 + 0.1 * clean) * rng.standard_normal(60)
    sigma = {"c": "s0 + s1*c"} if kind == "formula" else None
    data = nf.Dataset.from_arrays(ts, ys[None, :, None], states=["c"], sigma=sigma)
    return fit(data, DECAY), {"k": RATE, "s0": 0.1, "s1": 0.1}


TRIALS = {
    "limits": (limits, ("censored", "half the limit", "left out")),
    "counts": (epidemic, ("poisson", "squares")),
    "formula": (formula, ("formula", "constant noise")),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--only", choices=list(TRIALS))
    given = parser.parse_args()
    print("| trial | likelihood | constant | bias | covered | draws | seconds |\n|---|---|---|---|---|---|---|")
    for name in [given.only] if given.only else TRIALS:
        run, kinds = TRIALS[name]
        for kind in kinds:
            began, estimates, covered = time.perf_counter(), {}, {}
            for seed in range(given.draws):
                found, true = run(np.random.default_rng(seed), kind)
                for key, each in found.confidence().constants.items():
                    if key in true:
                        estimates.setdefault(key, []).append(each.estimate / true[key])
                        covered.setdefault(key, []).append(each.lower <= true[key] <= each.upper)
            seconds = time.perf_counter() - began
            for key, values in estimates.items():
                bias, error = np.mean(values) - 1, np.std(values) / np.sqrt(len(values))
                cells = (name, kind, key, f"{bias:+.1%} ± {error:.1%}", f"{np.mean(covered[key]):.0%}")
                print(f"| {' | '.join(cells)} | {len(values)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
