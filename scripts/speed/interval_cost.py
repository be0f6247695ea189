"""Measures what intervals cost beside the fit: `python scripts/speed/interval_cost.py`.

prints a table in Markdown. Five rates of the isomerisation of alpha-pinene are fitted to 100 rows of simulated
measurements, derivative matching and compilation included; then come their intervals by each method. A second
fit and its intervals, in the same process, run compiled programs.
"""

import functools
import time

import numpy as np
from scipy.linalg import expm

import node_fit as nf

RATES = {"a": 5.93e-5, "b": 2.96e-5, "c": 2.05e-5, "d": 2.74e-4, "e": 4.00e-5}
EQUATIONS = {
    "pinene": "-(a + b)*pinene",
    "dipentene": "a*pinene",
    "alloocimene": "b*pinene - (c + d)*alloocimene + e*dimer",
    "pyronene": "c*alloocimene",
    "dimer": "d*alloocimene - e*dimer",
}
ROWS = 100


def data(seed: int) -> nf.Dataset:
    """The substances over 36,420 minutes, with noise of 0.5 % of the whole."""
    a, b, c, d, e = RATES.values()
    matrix = np.zeros((5, 5))
    matrix[0, 0], matrix[1, 0], matrix[2, 0] = -(a + b), a, b
    matrix[2, 2], matrix[2, 4], matrix[3, 2], matrix[4, 2], matrix[4, 4] = -(c + d), e, c, d, -e
    ts = np.linspace(0.0, 36_420.0, ROWS)
    clean = np.array([100 * expm(t * matrix)[:, 0] for t in ts])
    noise = 0.5 * np.random.default_rng(seed).standard_normal(clean.shape)
    noise[0] = 0.0
    return nf.Dataset.from_arrays(ts, clean + noise, states=tuple(EQUATIONS), sigma=0.5)


def main() -> None:
    field = functools.partial(nf.Known, equations=EQUATIONS, constants={name: [1e-5, 0.0, None] for name in RATES})
    print("| | fit | Fisher | profile | both methods over fit |\n|---|---|---|---|---|")
    for seed, what in ((0, "with compilation"), (1, "compiled already")):
        seconds, began = [], time.perf_counter()
        fit = nf.fit(data(seed), field=field, progress=False, options=nf.Options(precision="x64", penalty=nf.Penalty()))
        seconds.append(time.perf_counter() - began)
        for method in ("fisher", "profile"):
            began = time.perf_counter()
            fit.confidence(method)
            seconds.append(time.perf_counter() - began)
        shown = " | ".join(f"{each:.2f} s" for each in seconds)
        print(f"| {what} | {shown} | {sum(seconds[1:]) / seconds[0]:.2f} |")


if __name__ == "__main__":
    main()
