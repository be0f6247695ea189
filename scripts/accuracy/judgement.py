"""Counts what is chosen and said of simulated records of many kinds: regret, run-aways, true verdicts, honest errors.

    python scripts/accuracy/judgement.py [--seeds 2] [--first 100] [--only tanks doses] [--effort normal]

fits each record from its columns alone, and prints a table in Markdown. The last part of a record, and trajectories of
other inputs, starts and three times the length, are kept back; what they would be without noise is known. `best` is
the lowest error on the part kept back among all fits that the program has tried, `kept` that of its result, `regret`
their ratio. Errors are shares of the spread, without noise. `expected` is the interval that the program gives for the
error on new data, with noise, and `new` that error. A verdict is true if what it says of the model holds on what was
kept back (`is_true`).
"""

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import odeint

import node_fit as nf
from node_fit.fitting import race

CONTENT = ("good", "close", "noise-limited")
# What the part kept back must explain for a model to be called good, and to be called poor no more.
GOOD, NOT_POOR = 0.9, 0.95
LONGER, ELSEWHERE = 3, 4


@dataclass(frozen=True)
class Kind:
    """Records of a system.

    - `rates`: derivatives of the states, of states, inputs and time. `measure`: what is measured, of states and inputs.
    - `draw`: inputs in the rows of a record, shape `(row, input)`. `start`: draws the states at the first row.
    - `step`: time between rows. `rows`: of a record. `count`: records. `noise`: share of the spread.
    - `missing`: share of the values that are not measured. `drift`: share of the spread of a random walk in the output.
    """

    rates: Callable
    measure: Callable
    draw: Callable
    start: Callable
    step: float
    rows: int = 500
    count: int = 1
    noise: float = 0.03
    missing: float = 0.0
    drift: float = 0.0

    def simulate(self, rng, rows):
        """Times, inputs and outputs without noise of a record."""
        ts, us = self.step * np.arange(rows), self.draw(rng, rows)
        held = lambda t: us[min(int(t / self.step), rows - 1)]  # noqa: E731
        state = odeint(lambda x, t: self.rates(x, held(t), t), self.start(rng), ts, hmax=self.step, rtol=1e-7)
        return ts, us, np.stack(self.measure(state.T, us.T), axis=1)


def switched(low, high, hold, channels=1):
    def draw(rng, rows):
        levels = rng.uniform(low, high, (rows // hold + 1, channels))
        return np.repeat(levels, hold, axis=0)[:rows]

    return draw


def on_off(hold):
    return lambda rng, rows: np.repeat(rng.integers(0, 2, (rows // hold + 1, 1)), hold, axis=0)[:rows].astype(float)


def sines(rng, rows):
    at = np.arange(rows) / 500
    return sum(np.cos(2 * np.pi * 1.7 * k * at + rng.uniform(0, 6)) for k in range(1, 20))[:, None] / 3.2


def constant(low, high):
    return lambda rng, rows: np.full((rows, 1), rng.uniform(low, high))


def nothing(rng, rows):
    return np.zeros((rows, 0))


def at(*values):
    return lambda rng: np.array(values)


def near(low, high):
    return lambda rng: rng.uniform(low, high)


def first(x, u):
    return x[:1]


KINDS = {
    "oven": Kind(
        lambda x, u, t: (3 * u[0] - 0.8 * (x[0] - x[1]), 0.5 * (x[0] - x[1]) - 0.03 * ((1 + x[1]) ** 4 - 1)),
        lambda x, u: x[1:],
        on_off(20),
        at(0.5, 0.5),
        0.3,
    ),
    "fermenter": Kind(
        lambda x, u, t: (x[0] * (x[1] / (0.4 + x[1]) - u[0]), u[0] * (3 - x[1]) - 2 * x[0] * x[1] / (0.4 + x[1])),
        first,
        switched(0.15, 0.6, 30),
        at(0.8, 0.8),
        0.4,
    ),
    "saturating gain": Kind(
        lambda x, u, t: (x[1], np.tanh(2.5 * u[0]) - x[0] - 0.5 * x[1]), first, sines, at(0, 0), 0.25
    ),
    "bent sensor": Kind(
        lambda x, u, t: (x[1], u[0] - 1.5 * x[0] - 0.6 * x[1]),
        lambda x, u: [np.tanh(1.2 * x[0]) + 0.1 * x[0]],
        sines,
        at(0, 0),
        0.25,
    ),
    "heating and cooling": Kind(
        lambda x, u, t: ((u[0] - x[0]) * (2.0 if u[0] > x[0] else 0.4),),
        first,
        switched(0, 1, 15),
        at(
            0.3,
        ),
        0.2,
    ),
    "drifting": Kind(
        lambda x, u, t: (u[0] - 0.7 * x[0] - 0.3 * x[0] ** 3,),
        first,
        switched(-1, 1, 12),
        at(
            0,
        ),
        0.25,
        drift=0.2,
    ),
    "two operating points": Kind(
        lambda x, u, t: (x[0] - x[0] ** 3 + u[0],),
        first,
        switched(-0.7, 0.7, 40),
        at(
            0.8,
        ),
        0.25,
    ),
    "slow sampling": Kind(
        lambda x, u, t: (x[1], u[0] - 2 * x[0] - 0.25 * x[1] - 0.5 * x[0] ** 3),
        first,
        switched(-1, 1, 4),
        at(0, 0),
        1.1,
    ),
    "gaps": Kind(
        lambda x, u, t: (u[0] - x[0] * x[1], x[0] - 0.8 * x[1]),
        lambda x, u: x,
        switched(0.2, 2, 20),
        at(1, 1),
        0.25,
        missing=0.3,
    ),
    "crane": Kind(
        lambda x, u, t: (x[1], u[0] * np.cos(x[0]) - 2 * np.sin(x[0]) - 0.3 * x[1]),
        first,
        switched(-1.2, 1.2, 15),
        at(0, 0),
        0.2,
    ),
    "three tanks": Kind(
        lambda x, u, t: (
            u[0] - np.sqrt(max(x[0], 0)),
            np.sqrt(max(x[0], 0)) - np.sqrt(max(x[1], 0)),
            np.sqrt(max(x[1], 0)) - np.sqrt(max(x[2], 0)),
        ),
        lambda x, u: x[2:],
        switched(0.3, 1.8, 25),
        at(1, 1, 1),
        0.4,
    ),
    "dry friction": Kind(
        lambda x, u, t: (x[1], 2 * u[0] - x[0] - 0.3 * x[1] - 0.4 * np.tanh(20 * x[1])),
        first,
        switched(-1, 1, 20),
        at(0, 0),
        0.25,
    ),
    "doses": Kind(
        lambda x, u, t: (1.2 * u[0] * np.exp(-1.2 * t) - 1.5 * x[0] / (0.8 + x[0]),),
        first,
        constant(1, 5),
        at(
            0,
        ),
        0.3,
        rows=16,
        count=10,
    ),
    "prey and hunters": Kind(
        lambda x, u, t: (x[0] * (1 - x[0] / 3) - x[0] * x[1] / (0.6 + x[0]), x[0] * x[1] / (0.6 + x[0]) - 0.5 * x[1]),
        lambda x, u: x,
        nothing,
        near((0.5, 0.3), (2.5, 1.5)),
        0.5,
        rows=40,
        count=8,
    ),
    "positions": Kind(
        lambda x, u, t: (x[1], -2 * np.sin(x[0]) - 0.2 * x[1]),
        first,
        nothing,
        near((-1.5, -1.5), (1.5, 1.5)),
        0.25,
        30,
        10,
    ),
    "fed batches": Kind(
        lambda x, u, t: (x[0] * (x[1] / (0.5 + x[1]) - 0.1), u[0] - 1.2 * x[0] * x[1] / (0.5 + x[1])),
        first,
        switched(0, 0.6, 8),
        near((0.1, 1), (0.4, 1)),
        0.5,
        rows=32,
        count=10,
    ),
    "infected": Kind(
        lambda x, u, t: (-1.2 * x[0] * x[1], 1.2 * x[0] * x[1] - 0.4 * x[1]),
        lambda x, u: x[1:],
        nothing,
        near((0.6, 0.02), (1, 0.02)),
        0.8,
        rows=25,
        count=9,
    ),
    "chain": Kind(
        lambda x, u, t: (-0.8 * x[0], 0.8 * x[0] - 0.5 * x[1] - 0.3 * x[1] ** 2),
        lambda x, u: x[1:],
        nothing,
        near((1, 0), (3, 0)),
        0.4,
        rows=20,
        count=9,
    ),
    "heated rooms": Kind(
        lambda x, u, t: (
            0.5 * (u[1] - x[0]) + 0.8 * (x[1] - x[0]) + u[0] ** 2,
            0.2 * (u[1] - x[1]) + 0.8 * (x[0] - x[1]) * (1 + 0.5 * x[0]),
        ),
        first,
        switched(-1, 1, 18, 2),
        at(0, 0),
        0.3,
    ),
}


def dataset(parts, names):
    ts, us, ys = zip(*parts, strict=True)
    inputs = [f"u{index}" for index in range(us[0].shape[1])]
    return nf.Dataset.from_arrays(list(ts), list(ys), list(us), states=names, inputs=inputs)


@dataclass(frozen=True)
class Sample:
    """A record: what is fitted, and what is kept back, with noise and without; trajectories from elsewhere."""

    known: nf.Dataset
    test: nf.Dataset
    clean: np.ndarray
    elsewhere: nf.Dataset
    spread: np.ndarray
    noise: float


def make_sample(kind, seed):
    rng = np.random.default_rng(seed)
    several = kind.count > 1
    records = [kind.simulate(rng, kind.rows) for _ in range(kind.count + (3 if several else 0))]
    spread = np.concatenate([ys for _, _, ys in records]).std(axis=0)
    names = ["y", "z", "w"][: len(spread)]
    noisy = []
    for ts, us, ys in records:
        walk = rng.standard_normal(ys.shape).cumsum(axis=0) / len(ys) ** 0.5
        measured = ys + spread * (kind.noise * rng.standard_normal(ys.shape) + kind.drift * walk)
        hidden = rng.random(ys.shape) < kind.missing
        hidden[0] = False
        noisy.append((ts, us, np.where(hidden, np.nan, measured)))
    if several:
        known, test, clean = noisy[: kind.count], noisy[kind.count :], [ys for _, _, ys in records[kind.count :]]
    else:
        # The start of what is kept back is read from its first rows, which are measured.
        end = int(0.75 * kind.rows)
        (ts, us, ys), full = noisy[0], records[0][2]
        known, test, clean = [(ts[:end], us[:end], ys[:end])], [(ts[end:], us[end:], ys[end:])], [full[end:]]
    far = [kind.simulate(rng, (1 if several else LONGER) * kind.rows) for _ in range(ELSEWHERE)]
    return Sample(dataset(known, names), dataset(test, names), np.array(clean), dataset(far, names), spread, kind.noise)


def clean_error(model, sample):
    """The error on what is kept back against what it would be without noise, as a share of the spread."""
    predicted = np.asarray(model.predict(sample.test))
    scored = nf.evaluation.metrics.score_values(model, sample.test).scored[..., None]
    squares = np.where(scored, (predicted - sample.clean) ** 2, 0).sum(axis=(0, 1)) / scored.sum(axis=(0, 1))
    error = float(np.sqrt((squares / sample.spread**2).mean()))
    return error if np.isfinite(error) else np.inf


def error_with_noise(fit, sample, spread):
    """The error on what was kept back as it was measured, in the spread that the program uses."""
    rmse = np.array([channel.rmse for channel in fit.score(sample.test).channels.values()])
    return float(np.sqrt(((rmse / spread) ** 2).mean()))


def leaves(model, sample):
    """Whether a model leaves the range of the truth by more than its width, from other starts and by other inputs."""
    predicted = np.asarray(model.predict(sample.elsewhere))
    true = sample.elsewhere.ys
    low, high = true.min(axis=(0, 1)), true.max(axis=(0, 1))
    begun = np.logical_or.accumulate(np.isfinite(predicted).all(axis=2), axis=1)
    inside = (predicted >= low - (high - low)) & (predicted <= high + (high - low))
    return bool((begun[..., None] & ~inside).any())


def is_true(kind, fit, error, sample, away):
    """Whether what a verdict says holds on what was kept back."""
    explained = 1 - error**2
    if kind == "noise-limited":
        return error <= 3**0.5 * sample.noise + 0.01 and not away
    if kind in CONTENT:
        return explained >= GOOD and not away
    if kind in ("beaten", "tied"):
        own = fit.score(sample.test).nrmse
        return min(each.nrmse for each in fit.simple_scores(sample.known, sample.test).values()) <= 1.1 * own
    if kind == "overfitted":
        return fit.score(sample.test).nrmse > 1.5 * fit.score(fit.data["train"]).nrmse
    return away if kind == "unstable" else explained < NOT_POOR


JUDGE = race.judge_attempt


def note_and_judge(tried, title, fit, *more):
    tried.append(fit.model)
    return JUDGE(title, fit, *more)


def choose_records(description, *, seeds, first):
    """A parser of commands that say which records are simulated."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--first", type=int, default=first)
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    return parser


def make_samples(args):
    """Names, seeds and records that the words of a command ask for."""
    for name in args.only:
        for seed in range(args.first, args.first + args.seeds):
            yield name, seed, make_sample(KINDS[name], [seed, *name.encode()])


def main():
    parser = choose_records(__doc__.splitlines()[0], seeds=2, first=100)
    parser.add_argument("--effort", default="normal")
    args = parser.parse_args()
    print("| record | seed | attempt | verdict | true | away | kept | best | regret | expected | new | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows, said = [], []
    for name, seed, sample in make_samples(args):
        tried = []
        race.judge_attempt = functools.partial(note_and_judge, tried)
        began = time.perf_counter()
        splits = sample.known.split(test=0)
        options = nf.Options(seed=seed, effort=args.effort)
        fit = nf.fit(splits.train, validation=splits.validation, options=options, progress=False)
        seconds = time.perf_counter() - began
        error = clean_error(fit.model, sample)
        best = min([error, *(clean_error(model, sample) for model in tried)])
        away, report = leaves(fit.model, sample), fit.assess()
        verdict, expected = report.verdict, report.expected
        true = is_true(verdict.kind, fit, error, sample, away)
        low, high = (0.0, np.inf) if expected is None else (expected.low, expected.high)
        new = error_with_noise(fit, sample, report.case.spread)
        kept = next((each.name for each in fit.attempts if each.kept), "as chosen")
        rows.append((true, away and verdict.kind in CONTENT, error / best, low <= new <= high))
        cells = (name, seed, kept, verdict.kind, "yes" if true else "NO", "yes" if away else "-")
        figures = f"{error:.3f} | {best:.3f} | {error / best:.2f} | {low:.3f} to {high:.3f} | {new:.3f}"
        print("|", " | ".join(map(str, cells)), "|", figures, f"| {seconds:.0f} |", flush=True)
        said.append((name, seed, true, verdict.sentence))
    true, away, regret, inside = (np.array(column) for column in zip(*rows, strict=True))
    print("\nVerdicts that are false:\n")
    print("\n".join(f"- {name}, {seed}: {sentence}" for name, seed, true, sentence in said if not true))
    print(f"\nverdicts true: {true.sum()} of {len(rows)}; run-aways called good: {away.sum()}")
    print(
        f"regret: {np.median(regret):.2f} in the median, {regret.max():.2f} at worst; in the interval: {inside.sum()}"
    )


if __name__ == "__main__":
    main()
