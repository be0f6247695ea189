"""Regret beside candidates that are fitted by hand: what other options would have reached on what was kept back.

    python scripts/accuracy/regret.py [--seeds 1] [--first 120] [--only tanks doses] [--candidates hidden=2 linear=1]

fits the simulated records of `judgement.py` from their columns alone, then by every candidate of a fixed table with
`effort=quick`, and prints for each record the error without noise of the default and of the best candidates, on the
part kept back, which chooses nothing. `regret` is the ratio of the default to the best of all.
"""

import functools
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import node_fit as nf

sys.path.insert(0, str(Path(__file__).parent))
from judgement import KINDS, choose_records, clean_error, leaves, make_samples

Narrow = functools.partial(nf.MLP, width=16, depth=1, linear=True)
LONG = {
    **{f"hidden={h}": {"hidden": h} for h in range(5)},
    **{f"readout={h}": {"hidden": h, "observation": nf.NetworkReadout} for h in (1, 2, 3)},
    **{f"linear={h}": {"hidden": h, "field": nf.Linear} for h in (0, 2, 4)},
    "4 rows": {"hidden": 2, "start": functools.partial(nf.Encoder, rows=4, before=True)},
    "20 rows": {"hidden": 2, "start": functools.partial(nf.Encoder, rows=20, before=True)},
    "long windows": {"hidden": 2, "training": nf.Training(window=180)},
    "narrow": {"hidden": 2, "field": Narrow},
    "polynomial=2": {"field": functools.partial(nf.Polynomial, degree=2), "hidden": 1},
    "sparse": {"field": nf.Sparse},
}
FITTED = {"field": Narrow, "start": functools.partial(nf.Fitted, given=7), "optimizer": nf.LevenbergMarquardt()}
SHORT = {
    **{f"hidden={h}": {"hidden": h} for h in range(4)},
    **{f"told={h}": {"hidden": h, "start": functools.partial(nf.Encoder, rows=4)} for h in (1, 2, 3)},
    **{f"narrow={h}": {"hidden": h, "field": Narrow} for h in (0, 1, 2)},
    **{f"fitted={h}": {"hidden": h, "penalty": nf.Penalty(ridge=0.01), **FITTED} for h in (0, 1, 2)},
    **{f"linear={h}": {"hidden": h, "field": nf.Linear} for h in (0, 1, 2)},
    "polynomial=2": {"field": functools.partial(nf.Polynomial, degree=2)},
    "polynomial=3": {"field": functools.partial(nf.Polynomial, degree=3)},
    "polynomial=2, hidden=1": {"field": functools.partial(nf.Polynomial, degree=2), "hidden": 1},
    "sparse": {"field": nf.Sparse},
}


def fit(sample, options):
    splits = sample.known.split(test=0)
    return nf.fit(splits.train, validation=splits.validation, options=options, progress=False)


def main():
    warnings.simplefilter("ignore")
    parser = choose_records(__doc__.splitlines()[0], seeds=1, first=120)
    parser.add_argument("--candidates", nargs="*")
    args = parser.parse_args()
    print("| record | seed | kept | verdict | error | seconds | best | error | away | regret | others |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    regrets = []
    for name, seed, sample in make_samples(args):
        began = time.perf_counter()
        chosen = fit(sample, nf.Options(seed=seed))
        seconds = time.perf_counter() - began
        kept = next((each.name for each in chosen.attempts if each.kept), "as chosen")
        error, verdict = clean_error(chosen.model, sample), chosen.assess().verdict.kind
        errors = {}
        for title, words in (SHORT if KINDS[name].count > 1 else LONG).items():
            if args.candidates and title not in args.candidates:
                continue
            try:
                other = fit(sample, nf.Options(seed=seed, effort="quick", **words))
                errors[title] = (clean_error(other.model, sample), leaves(other.model, sample))
            except (ValueError, RuntimeError) as problem:
                print(f"{name}, {title}: {problem}", file=sys.stderr)
        order = sorted(errors, key=lambda title: errors[title][0])
        best = errors[order[0]]
        regret = error / min(error, best[0])
        regrets.append(regret)
        others = ", ".join(f"{title} {errors[title][0]:.3f}" for title in order[1:])
        cells = (name, seed, kept, verdict, f"{error:.3f}", f"{seconds:.0f}", order[0], f"{best[0]:.3f}")
        print(
            "|",
            " | ".join(map(str, cells)),
            f"| {'yes' if best[1] else '-'} | {regret:.2f} | {others} |",
            flush=True,
        )
    print(f"\nregret: {np.median(regrets):.2f} in the median, {max(regrets):.2f} at worst")


if __name__ == "__main__":
    main()
