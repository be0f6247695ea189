"""Records from their columns alone, figures asked beside figures had.

    python scripts/accuracy/records.py [--only NAME ...]

It runs the whole command on each record and draw (`--draws`), and prints a row for each record: the figure that is
asked, the figure that was had (median and range, or how many draws were found), the seconds of the command, the
attempts that were kept, the verdicts, and the shares of training and test measurements that bands cover, if the fit
has some. Known equations begin at random guesses, each constant within a factor of ten
of the true one; such a fit is found if it is nearer to the values without noise than half the noise, or as near to the
noisy ones as the best fit that begins at the true constants (by SciPy). The measured
records are read from `--data` (docs/recipes.md says where they are published), and left out where they are absent; the
others are generated. Further words go to the command: `-- effort=quick`. `--from 3` begins with the fourth draw.
With `-- discover=false`, networks and polynomials have to do.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

Rates = Callable[[float, np.ndarray], Sequence[float]]
Words = tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """What is fitted and measured.

    - `asked`: the figure not to exceed; or, of known equations, the share of draws to find.
    - `words`: of the command; `write` makes the table of a draw at a path, and returns further words.
    - `measure`: the figure of a run in a directory; True or False says whether it was found.
    """

    asked: float
    write: Callable[[Path, int], Words]
    measure: Callable[[Path, int], float | bool]
    words: Words = ()
    needs: Path | None = None


def solve(rates: Rates, start: Sequence[float] | np.ndarray, times: np.ndarray) -> np.ndarray:
    """States, shape `(time, state)`."""
    return solve_ivp(rates, (times[0], times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-11).y.T


def columns(states: str, *more: str) -> Words:
    return ("data=table", "data.time=t", f"data.states=[{states}]", *more)


def read_summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def read_score(split: str) -> Callable[[Path, int], float]:
    def read(run: Path, draw: int) -> float:
        found = read_summary(run)["metrics"][split]["nrmse"]
        return np.inf if found is None else found

    return read


# Walking: three tables, whose names of trajectories repeat.
PARTS = ("train", "validation", "test")


def walking(folder: Path) -> Record:
    def write(path: Path, draw: int) -> Words:
        tables = {part: pd.read_csv(folder / f"{part}.csv") for part in PARTS}
        for part, table in tables.items():
            table["trajectory"] = part + table["trajectory"].astype(str)
        pd.concat(tables.values()).to_csv(path, index=False)
        names = {part: ",".join(table["trajectory"].unique()) for part, table in tables.items()}
        held = [f"data.split.{part}_trajectories=[{names[part]}]" for part in PARTS[1:]]
        return ("data.trajectory=trajectory", "data.split.by=trajectory", *held)

    def measure(run: Path, draw: int) -> float:
        """The mean squared error of the 50 angles, from the second row of each test record on."""
        table = pd.read_csv(run / "predictions.csv", dtype={"trajectory": str})
        angles, plane = np.load(folder / "test_angles.npz")["angles"], np.load(folder / "projection.npz")
        found = [
            table.loc[table["trajectory"] == f"test{at}", [f"c{i}_predicted" for i in range(5)]].to_numpy()
            for at in range(len(angles))
        ]
        return float(np.mean((np.stack(found) @ plane["W"] + plane["mu"] - angles)[:, 1:] ** 2))

    return Record(20.0, write, measure, columns("c0,c1,c2,c3,c4"), needs=folder / "train.csv")


# Chaotic records of 2,000 rows: rates, step, and the figure asked of windows of 50 rows.
CHAOTIC: Mapping[str, tuple[Rates, float]] = {
    "lorenz": (lambda t, y: [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]], 0.02),
    "roessler": (lambda t, y: [-y[1] - y[2], y[0] + 0.2 * y[1], 0.2 + y[2] * (y[0] - 5.7)], 0.1),
    "double scroll": (
        lambda t, y: [15.6 * (y[1] - y[0] - chua(y[0])), y[0] - y[1] + y[2], -28 * y[1]],
        0.03,
    ),
}
CHAOTIC_ROWS, SETTLE = 2000, 100.0


def chua(x: float) -> float:
    """The current of Chua's diode (T. Matsumoto, IEEE Trans. Circuits Syst. 31:1055, 1984)."""
    return -5 / 7 * x + 0.5 * (-8 / 7 + 5 / 7) * (abs(x + 1) - abs(x - 1))


def chaotic(name: str, noise: float) -> Record:
    rates, step = CHAOTIC[name]

    def write(path: Path, draw: int) -> Words:
        rng = np.random.default_rng(draw)
        begin = solve(rates, rng.uniform(0.1, 0.5, 3), np.array([0.0, SETTLE]))[-1]
        times = np.arange(CHAOTIC_ROWS) * step
        states = solve(rates, begin, times)
        states += noise * states.std(axis=0) * rng.normal(size=states.shape)
        pd.DataFrame(states, columns=["x", "y", "z"]).assign(t=times).to_csv(path, index=False)
        return ()

    return Record(max(0.05, 1.5 * noise), write, read_score("test"), columns("x,y,z"))


# Oscillators of which only the position is measured: rates, starts and last time, of 500 rows.
POSITIONS: Mapping[str, tuple[Rates, Sequence[float], float]] = {
    "position of a damped spring": (lambda t, y: [y[1], -4 * y[0] - 0.16 * y[1]], (2.0, 0.0), 25.0),
    "position of van der Pol": (lambda t, y: [y[1], 1.5 * (1 - y[0] ** 2) * y[1] - y[0]], (0.5, 0.0), 50.0),
}
POSITION_NOISE = 0.03


def position(name: str) -> Record:
    rates, start, last = POSITIONS[name]

    def write(path: Path, draw: int) -> Words:
        times = np.linspace(0, last, 500)
        x = solve(rates, start, times)[:, 0]
        x += POSITION_NOISE * x.std() * np.random.default_rng(draw).normal(size=x.shape)
        pd.DataFrame({"t": times, "x": x}).to_csv(path, index=False)
        return ()

    return Record(0.3, write, read_score("test"), columns("x"))


# Standard deviations of the noise. With six numbers fitted to 49 rows, noise alone moves the best fit by 0.35 of them
# on average, and by over 0.5 in 6 % of the draws. So a fit is found too if its misfit is that of the best one, but for
# this factor.
NEAR, AS_GOOD, NOT_SOLVED = 0.5, 1.01, 1e3


@dataclass(frozen=True)
class Hidden:
    """Known equations of which some states are measured: the true constants, starts and noise [standard deviations]."""

    equations: Mapping[str, str]
    constants: Mapping[str, float]
    start: Mapping[str, float]
    measured: tuple[str, ...]
    times: np.ndarray
    noise: float = 0.03

    def simulate(self, constants: Iterable[float], start: Iterable[float], times: np.ndarray) -> np.ndarray:
        """What is measured, shape `(time, measured)`."""
        # The equations' text in Python: the same grammar as the command's.
        names, known = list(self.equations), dict(zip(self.constants, constants, strict=True))
        compiled = [compile(text, "", "eval") for text in self.equations.values()]

        def rates(t: float, y: np.ndarray) -> list[float]:
            return [eval(each, {}, known | dict(zip(names, y, strict=True))) for each in compiled]

        return solve(rates, list(start), times)[:, [names.index(name) for name in self.measured]]

    def fit_from_truth(self, scaled: np.ndarray, times: np.ndarray, spread: np.ndarray) -> float:
        """The misfit, in standard deviations of the noise, of the best fit from the true constants and starts."""
        constants, start = (np.array(list(each.values())) for each in (self.constants, self.start))
        size = np.abs(start).max()

        def residuals(moves: np.ndarray) -> np.ndarray:
            many = len(constants)
            found = self.simulate(constants * np.exp(moves[:many]), start + size * moves[many:], times)
            # A solve that does not reach the end is far off.
            return (found / spread - scaled).ravel() if len(found) == len(times) else np.full(scaled.size, NOT_SOLVED)

        return float(np.sqrt(np.mean(least_squares(residuals, np.zeros(len(constants) + len(start))).fun ** 2)))

    def record(self) -> Record:
        exact = self.simulate(self.constants.values(), self.start.values(), self.times)
        spread = self.noise * exact.std(axis=0)

        def write(path: Path, draw: int) -> Words:
            rng = np.random.default_rng(draw)
            noisy = exact + spread * rng.normal(size=exact.shape)
            pd.DataFrame(noisy, columns=list(self.measured)).assign(t=self.times).to_csv(path, index=False)
            guesses = {name: value * 10 ** rng.uniform(-1, 1) for name, value in self.constants.items()}
            said = ", ".join(f"{name}: [{value:.3g}, 0, null]" for name, value in guesses.items())
            return (f"+field.constants={{{said}}}",)

        def measure(run: Path, draw: int) -> bool:
            table = pd.read_csv(run / "predictions.csv").query("split == 'train'")
            rows = np.searchsorted(self.times, table["t"].to_numpy() - 1e-6)
            names = list(self.measured)
            found, noisy = table[[f"{name}_predicted" for name in names]].to_numpy(), table[names].to_numpy()
            best = self.fit_from_truth(noisy / spread, self.times[rows], spread)
            fitted, apart = (np.sqrt(np.mean((each / spread) ** 2)) for each in (found - noisy, found - exact[rows]))
            print(
                f"  {apart:.2g} of the noise from the true values; misfit {fitted / best:.4g} of the least",
                file=sys.stderr,
            )
            return bool(apart < NEAR or fitted < AS_GOOD * best)

        hidden = ",".join(name for name in self.equations if name not in self.measured)
        text = ", ".join(f'{name}: "{rate}"' for name, rate in self.equations.items())
        words = ("field=known", f"field.equations={{{text}}}", f"hidden=[{hidden}]")
        return Record(1.0, write, measure, columns(",".join(self.measured), *words))


HIDDEN: Mapping[str, Hidden] = {
    "sir": Hidden(
        {"S": "-b*S*I/1000", "I": "b*S*I/1000 - g*I"}, {"b": 0.5, "g": 0.15}, {"S": 990.0, "I": 10.0}, ("I",),
        np.linspace(0, 60, 61),
    ),
    "seir": Hidden(
        {"S": "-b*S*I/1000", "E": "b*S*I/1000 - s*E", "I": "s*E - g*I"}, {"b": 0.8, "s": 0.3, "g": 0.15},
        {"S": 990.0, "E": 5.0, "I": 5.0}, ("I",), np.linspace(0, 80, 81),
    ),
    "one species": Hidden(
        {"x": "a*x - b*x*z", "z": "-m*z + d*x*z"}, {"a": 0.55, "b": 0.028, "m": 0.84, "d": 0.026},
        {"x": 30.0, "z": 4.0}, ("x",), np.linspace(0, 20, 81),
    ),
    "absorption": Hidden(
        {"gut": "-ka*gut", "c": "ka*gut/V - ke*c"}, {"ka": 1.2, "ke": 0.15, "V": 20.0}, {"gut": 300.0, "c": 0.0},
        ("c",), np.linspace(0, 24, 41),
    ),
    "neuron": Hidden(
        {"v": "k*(v - v^3/3 + w)".replace("^", "**"), "w": "(a - v - b*w)/k"}, {"k": 3.0, "a": 0.2, "b": 0.2},
        {"v": -1.0, "w": 1.0}, ("v",), np.linspace(0, 20, 101),
    ),
}  # fmt: skip


def few_rows(kind: str, asked: float) -> Record:
    """The published protocols of few noisy rows, with other draws of their noise; draw 0 is the published one."""
    from node_fit.benchmark import protocols

    protocol = protocols.PROTOCOLS[kind]
    neuron = kind == "fitzhugh_nagumo"

    def write(path: Path, draw: int) -> Words:
        assert protocol.make is not None
        protocol.make(path)
        if draw:
            times = pd.read_csv(path)["t"].to_numpy()
            rng = np.random.default_rng(draw)
            if neuron:
                _, states, hidden = protocols.neuron_states()
                states = states + rng.normal(size=states.shape) * protocols.NEURON_VARIANCE**0.5
                states[hidden] = np.nan
            else:
                states = protocols.solve_exactly(protocols.van_der_pol_data, (-1.5, 2.5), times)
                rows = protocols.ROWS_OF_PROBLEM
                states[:rows] += rng.normal(size=(rows, 2)) * protocols.VARIANCE**0.5
            protocols.write_columns(path, times, states)
        return ()

    def measure(run: Path, draw: int) -> float:
        if neuron:
            found = protocols.judge_neuron(run)["mse"]
            return np.inf if found is None else found
        found = read_summary(run)["metrics"]["test"]["rmse"]
        return np.inf if found is None else found**2

    return Record(asked, write, measure, protocol.words)


def shipped(words: Words, asked: float) -> Record:
    return Record(asked, lambda path, draw: (), read_score("test"), words)


def records(data: Path) -> dict[str, Record]:
    return {
        "first command": shipped(("data=pendulum",), 0.6),
        "walking": walking(data / "walking"),
        "van der pol, even": few_rows("van_der_pol_regular", 0.40),
        "van der pol, uneven": few_rows("van_der_pol_irregular", 0.25),
        "neuron, gap": few_rows("fitzhugh_nagumo", 0.07),
        **{name: position(name) for name in POSITIONS},
        **{name: each.record() for name, each in HIDDEN.items()},
        **{f"{name}, {noise:.0%}": chaotic(name, noise) for name in CHAOTIC for noise in (0.0, 0.01, 0.05)},
    }


@dataclass(frozen=True)
class Run:
    """A finished command: its figure, seconds, the attempt that was kept, the verdict, and the share of each split
    within the bands."""

    figure: float | bool
    seconds: float
    kept: str
    verdict: str
    covered: Mapping[str, float | None]


def run(record: Record, draw: int, words: Words) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path, into = Path(folder, "table.csv"), Path(folder, "run")
        more = record.write(path, draw)
        where = (f"data.path={path}",) if path.is_file() else ()
        command = [sys.executable, "-m", "node_fit", *record.words, *more, *where, f"seed={draw}", *words]
        began = time.perf_counter()
        done = subprocess.run([*command, f"hydra.run.dir={into}"], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        found = read_summary(into)
        kept = next((each["name"] for each in found.get("attempts", ()) if each["kept"]), "as chosen")
        covered = (found.get("ensemble") or {}).get("coverage") or {}
        outcome = Run(record.measure(into, draw), seconds, kept, found["diagnosis"]["kind"], covered)
        print(f"draw {draw}: {outcome}", file=sys.stderr, flush=True)
        return outcome


def row(name: str, record: Record, found: Sequence[Run]) -> str:
    figures = [each.figure for each in found]
    if all(isinstance(each, bool) for each in figures):
        asked, had = f"{len(found)} of {len(found)}", f"{sum(figures)} of {len(found)}"
    else:
        asked = f"{record.asked:g}"
        had = f"{np.median(figures):.3g} ({min(figures):.3g}-{max(figures):.3g})"
    seconds = [each.seconds for each in found]
    kept, verdicts = (
        ", ".join(f"{what} {count}" for what, count in Counter(getattr(each, key) for each in found).most_common())
        for key in ("kept", "verdict")
    )
    bands = ", ".join(filter(None, [described_coverage(found, split) for split in ("train", "test")])) or "-"
    return f"| {name} | {len(found)} | {asked} | {had} | {np.median(seconds):.0f} | {kept} | {verdicts} | {bands} |"


def described_coverage(found: Sequence[Run], split: str) -> str:
    """The median share of a split within the bands, of the draws that have some, and how many have."""
    shares = [share for each in found if (share := each.covered.get(split)) is not None]
    return f"{np.median(shares):.0%} of {split} ({len(shares)})" if shares else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Records from their columns alone, beside the figures asked.")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first draw")
    parser.add_argument("--only", nargs="+", help="names of records, or their beginnings")
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the measured records")
    parser.add_argument("words", nargs="*", help="further words of each command")
    given = parser.parse_args()
    known = records(given.data)
    chosen = [name for name in known if given.only is None or any(name.startswith(each) for each in given.only)]
    if not chosen:
        parser.error(f"there is no such record; choose from {', '.join(known)}")
    print("| record | draws | asked | had: median (range) | seconds | kept | verdicts | bands at 90 % cover (draws) |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in chosen:
        record = known[name]
        if record.needs is not None and not record.needs.is_file():
            print(f"{name}: left out, since {record.needs} is absent", file=sys.stderr)
            continue
        draws = range(given.first, given.first + given.draws)
        print(row(name, record, [run(record, draw, tuple(given.words)) for draw in draws]), flush=True)


if __name__ == "__main__":
    main()
