"""Counts how often the interval for the error on new data holds that of new trajectories.

    python scripts/accuracy/expected_error.py [--counts 6 10 14] [--seeds 2] [--first 500] [--only doses chain]

fits the short trajectories of the kinds of `judgement.py` from their columns alone, as many of them as `--counts`
says, of which a fifth is for validation. Twenty others, with noise, are then predicted: one by one, and in sets of
four, whose mean square counts. The interval should hold 80 % of them.
"""

import argparse
import time
from dataclasses import replace

import judgement
import numpy as np

import node_fit as nf
from node_fit.evaluation.metrics import squared_errors
from node_fit.evaluation.new_data import pool_squares

SHORT = [name for name, kind in judgement.KINDS.items() if kind.count > 1]
NEW, SET = 20, 4


def mean_squares(fit: nf.Fit, data: nf.Dataset, spread: np.ndarray) -> np.ndarray:
    """The mean square of each trajectory, in the spread of the states."""
    squares = squared_errors(data, fit.predict(data)) / spread**2
    alone = np.eye(len(data), dtype=bool)[:, :, None, None]
    return np.array([pool_squares(squares, row & data.mask) for row in alone])


def measure(name: str, count: int, seed: int) -> tuple[float, float, float, str]:
    """The shares of single trajectories and of sets in the interval, its width as a factor, and a row of the table."""
    kind = judgement.KINDS[name]
    known = judgement.make_sample(replace(kind, count=count), [seed, *name.encode()])
    new = judgement.make_sample(replace(kind, count=NEW), [seed + 1, *name.encode()]).known
    began = time.perf_counter()
    splits = known.known.split(validation=0.2, test=0)
    fit = nf.fit(splits.train, validation=splits.validation, options=nf.Options(seed=seed), progress=False)
    seconds = time.perf_counter() - began
    report = fit.assess()
    squares = mean_squares(fit, new, report.case.spread)
    low, high = (0.0, np.inf) if report.expected is None else (report.expected.low, report.expected.high)
    one, four = (np.sqrt(each) for each in (squares, squares.reshape(-1, SET).mean(axis=1)))
    single, sets = (float(((low <= each) & (each <= high)).mean()) for each in (one, four))
    cells = (name, count, seed, report.verdict.kind, f"{low:.3f} to {high:.3f}", f"{np.median(one):.3f}")
    row = f"| {' | '.join(map(str, cells))} | {single:.0%} | {sets:.0%} | {seconds:.0f} |"
    return single, sets, (high / low) ** 0.5 if low else np.inf, row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[6, 10, 14])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=SHORT)
    args = parser.parse_args()
    print("| record | trajectories | seed | verdict | expected | new, median | single | sets | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for seed in range(args.first, args.first + args.seeds):
        for name in args.only:
            for count in args.counts:
                found.append(measure(name, count, seed))
                print(found[-1][-1], flush=True)
    single, sets, width = (np.array(column) for column in list(zip(*found, strict=True))[:3])
    print(
        f"\nof {len(found)} fits, the intervals hold {single.mean():.0%} of new trajectories, {sets.mean():.0%} of sets"
    )
    print(f"of {SET}; in the median they reach by a factor of {np.median(width):.2g} to either side")


if __name__ == "__main__":
    main()
