"""Measures fits of populations against published objectives and estimates, and the coverage of their intervals.

    python scripts/accuracy/population.py --data DATASETS [--cases wang theophylline] [--studies 100] [--censored 6]
                                          [--network 10]

prints tables in Markdown. `DATASETS` has the folders `theophylline` (`theophylline.csv` in NONMEM's columns, and
`wang2007.csv`: table 1 of Wang, J. Pharmacokinet. Pharmacodyn. 34, 2007) and `warfarin` (`warfarin.csv`, as nlmixr2data
has it). `--studies` simulates studies like theophylline's, of 12 subjects and 11 rows each, and needs no data;
neither does `--censored`: such studies of 60 subjects, a fifth of whose rows lie below a limit; nor `--network`: those
of 24 subjects whose uptake saturates, which a network learns, and six of whom are predicted from their first rows.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import node_fit as nf
from node_fit.population.effects import Covariances
from node_fit.population.likelihood import Population
from node_fit.population.prediction import KnownPopulation
from node_fit.population.search import search_from_starts
from node_fit.population.subjects import Subjects

ABSORPTION = {"depot": "-ka*depot", "c": "ka*depot/v - cl/v*c"}
# What simulated studies are drawn from: typical constants, variances of their logarithms, the noise, dose and times.
TRUTH, VARIANCES, NOISE, DOSE = {"ka": 1.59, "cl": 2.75, "v": 31.8}, {"ka": 0.4, "cl": 0.07, "v": 0.02}, 0.7, 320.0
TIMES = np.array([0, 0.25, 0.5, 1, 2, 3.5, 5, 7, 9, 12, 24.0])
SUBJECTS = 12
# Of studies with a limit.
CENSORED_SUBJECTS, CENSORED_SHARE = 60, 0.2
# Of studies with an unknown uptake.
NETWORK_SUBJECTS, FIRST_ROWS = 24, 3
UPTAKE_TIMES = np.array([0, 0.5, 1, 2, 3, 5, 7, 9.0])
# Means of a nonparametric fit, of concentrations, and of their effect on the activity of prothrombin.
WARFARIN = {"ktr": 1.47, "ka": 1.16, "v": 8.41, "cl": 0.142}
WARFARIN_EFFECT = {"emax": 0.94, "ec50": 1.01, "kout": 0.066, "e0": 99.0}


def row(*cells: object) -> None:
    print(
        "| " + " | ".join(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |", flush=True
    )


def measure_wang(folder: Path) -> None:
    """The objectives of each method at the published parameters."""
    data = nf.Dataset.from_file(folder / "wang2007.csv", time="TIME", states=["DV"], trajectory="ID")
    field = functools.partial(nf.Known, equations={"DV": "-k*DV"}, constants={"k": 0.5})
    start = functools.partial(nf.Stated, values={"DV": 10})
    random = {"k": {"kind": "lognormal", "variance": 0.04}}
    row("method", "objective", "published")
    row("---", "---", "---")
    for name, method, nodes, published in (
        ("FOCEI", "focei", 0, 39.458),
        ("FOCE", "foce", 0, 39.207),
        ("FO", "fo", 0, 39.213),
        ("quadrature, 2 nodes", "focei", 2, 39.297),
        ("quadrature, 15 nodes", "focei", 15, "-"),
    ):
        settings = nf.MixedEffects(method=method, noise={"DV": {"proportional": 0.1**0.5}}, nodes=nodes, evaluate=True)
        solver = nf.Options(solver=nf.Solver(rtol=1e-8))
        fit = nf.fit_population(data, random=random, field=field, start=start, population=settings, options=solver)
        row(name, fit.objective if fit.quadrature is None else fit.quadrature, published)


def measure_command(*words: str) -> float:
    """The seconds of a whole command, without programs compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "node_fit", *words, f"hydra.run.dir={folder}/run", "compile_cache=false"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


def measure_theophylline(folder: Path) -> None:
    """One compartment with absorption, additive noise and three effects."""
    file = folder / "theophylline.csv"
    states = {"compartments": ["depot", "c"], "states": ["c"]}
    data = nf.NONMEM(path=str(file), time="TIME", trajectory="ID", **states).read(str(file))
    field = functools.partial(nf.Known, equations=ABSORPTION, constants=dict.fromkeys(TRUTH, 1.0))
    fit = nf.fit_population(data, random=list(TRUTH), field=field, population=nf.MixedEffects(nodes=9))
    row("quantity", "fit", "published")
    row("---", "---", "---")
    row("objective", fit.objective, 116.803)
    for name, published in (("ka", 0.465), ("cl", 1.012), ("v", 3.460)):
        row(f"log {name}", float(np.log(fit.constants[name])), published)
    for name, published in (("ka", 0.405), ("cl", 0.069), ("v", 0.019)):
        row(f"variance of {name}", fit.variances[name].value, published)
    row("noise", fit.noise["c"]["additive"].value, 0.695)
    row("quadrature, 9 nodes", float(fit.quadrature or np.nan), 118.12)
    equations = "field.equations={depot: -ka*depot, c: ka*depot/v - cl/v*c}"
    row(
        "seconds of the command", measure_command(str(file), "field=known", equations, "random=[ka,cl,v]"), "at most 30"
    )


def measure_saem(folder: Path) -> None:
    """Theophylline by SAEM, against what nlmixr2's gives."""
    file = folder / "theophylline.csv"
    data = nf.NONMEM(path=str(file), time="TIME", trajectory="ID", compartments=["depot", "c"], states=["c"])
    field = functools.partial(nf.Known, equations=ABSORPTION, constants=dict.fromkeys(TRUTH, 1.0))
    settings = nf.MixedEffects(method="saem")
    fit = nf.fit_population(data.read(str(file)), random=list(TRUTH), field=field, population=settings)
    row("quantity", "fit", "published")
    row("---", "---", "---")
    for name, published in (("ka", 0.464), ("cl", 1.01), ("v", 3.46)):
        row(f"log {name}", float(np.log(fit.constants[name])), published)
    row("noise", fit.noise["c"]["additive"].value, 0.696)
    row("seconds", fit.seconds, fit.status)


def measure_warfarin(folder: Path, *, effect: bool) -> None:
    """Absorption through a transit state; concentrations alone, or with the turnover that they slow down."""
    file = folder / "warfarin.csv"
    equations = {"depot": "-ktr*depot", "gut": "ktr*depot - ka*gut", "cp": "ka*gut/v - cl/v*cp"}
    first: dict[str, object] = {"ktr": 1.0, "ka": 1.0, "v": 10.0, "cl": 0.1}
    states, noise, start, random, means = ["cp"], {"cp": "combined"}, None, list(first), dict(WARFARIN)
    if effect:
        # The base does not change; it carries the activity before the dose into the equations.
        equations |= {"pca": "kout*(base*(1 - emax*cp/(ec50 + cp)) - pca)", "base": "0*base"}
        first |= {"emax": [0.8, 0, 1], "ec50": 0.5, "kout": 0.05}
        states, noise, random = ["cp", "pca"], noise | {"pca": "additive"}, [*first, "e0"]
        values = dict.fromkeys(equations, 0.0) | {"pca": "e0", "base": "e0"}
        start, means = functools.partial(nf.Stated, values=values, constants={"e0": 100.0}), means | WARFARIN_EFFECT
    data = nf.NONMEM(path=str(file), time="time", trajectory="id", compartments=list(equations), states=states)
    field = functools.partial(nf.Known, equations=equations, constants=first)
    settings = nf.MixedEffects(noise=noise)
    fit = nf.fit_population(data.read(str(file)), random=random, field=field, start=start, population=settings)
    row("constant", "mean of the subjects", "nonparametric mean", "difference", "typical", "variance")
    row("---", "---", "---", "---", "---", "---")
    for name, mean in means.items():
        own = float(fit.individuals[name].mean())
        row(name, own, mean, f"{100 * (own / mean - 1):+.0f}%", fit.constants[name], fit.variances[name].value)
    row("objective, seconds", fit.objective, fit.seconds, fit.status, "", "")


def simulate_rows(seed: int, subjects: int = SUBJECTS) -> np.ndarray:
    """Measurements of a study like theophylline's, by the closed form of its equations."""
    rng = np.random.default_rng(seed)
    effects = {name: np.sqrt(variance) * rng.standard_normal(subjects) for name, variance in VARIANCES.items()}
    ka, cl, v = (TRUTH[name] * np.exp(effects[name])[:, None] for name in TRUTH)
    ke = cl / v
    clean = DOSE * ka / (v * (ka - ke)) * (np.exp(-ke * TIMES) - np.exp(-ka * TIMES))
    return clean + NOISE * rng.standard_normal(clean.shape)


def make_study(ys: np.ndarray, censored: np.ndarray | None = None) -> nf.Dataset:
    marks = None if censored is None else censored[..., None]
    data = nf.Dataset.from_arrays(TIMES, ys[..., None], states=["c"], censored=marks)
    return nf.with_events(data, [{"time": 0.0, "state": "depot", "add": DOSE}])


def measure_studies(count: int) -> None:
    """How often 95 % intervals cover, and the bias of variances."""
    field = functools.partial(nf.Known, equations=ABSORPTION, constants=TRUTH)
    covered = dict.fromkeys(TRUTH, 0)
    variances: dict[str, list[float]] = {name: [] for name in TRUTH}
    for seed in range(count):
        fit = nf.fit_population(make_study(simulate_rows(seed)), random=list(TRUTH), field=field)
        for name, true in TRUTH.items():
            covered[name] += fit.fixed[name].lower <= true <= fit.fixed[name].upper
            variances[name].append(fit.variances[name].value)
    row("constant", f"covered of {count}", "mean variance", "true variance", "bias")
    row("---", "---", "---", "---", "---")
    for name in TRUTH:
        mean, true = float(np.mean(variances[name])), VARIANCES[name]
        row(name, covered[name], mean, true, f"{100 * (mean / true - 1):+.0f}%")


def measure_censored(count: int) -> None:
    """The bias of constants where a fifth of the rows after the dose lies below a limit, by what is made of these."""
    field = functools.partial(nf.Known, equations=ABSORPTION, constants=TRUTH)
    offs: dict[str, list[list[float]]] = {}
    for seed in range(count):
        ys = simulate_rows(seed, CENSORED_SUBJECTS)
        ys[:, 0] = np.nan  # Nothing is there before the dose.
        limit = float(np.nanquantile(ys, CENSORED_SHARE))
        low = ys < limit
        for way, study in {
            "all values known": make_study(ys),
            "censored": make_study(np.where(low, limit, ys), np.where(low, -1, 0)),
            "left out": make_study(np.where(low, np.nan, ys)),
            "half the limit": make_study(np.where(low, limit / 2, ys)),
        }.items():
            fit = nf.fit_population(study, random=list(TRUTH), field=field)
            offs.setdefault(way, []).append([np.log(fit.constants[name] / true) for name, true in TRUTH.items()])
    row("rows below the limit", *(f"bias of {name}, %" for name in TRUTH), "standard error of that of cl, %")
    row("---", *("---" for _ in TRUTH), "---")
    for way, values in offs.items():
        error = float(np.std(values, axis=0, ddof=1)[1]) / count**0.5 if count > 1 else float("nan")
        row(way, *(f"{100 * off:+.1f}" for off in np.mean(values, axis=0)), f"{100 * error:.1f}")


def simulate_uptake(seed: int) -> np.ndarray:
    """Concentrations of subjects after a dose that a saturating law takes up, solved in small steps, with noise."""
    rng = np.random.default_rng(seed)
    rate, k = np.exp(0.3 * rng.standard_normal((2, NETWORK_SUBJECTS))) * [[1.0], [0.3]]

    def slopes(t: float, y: np.ndarray) -> np.ndarray:
        gut, c = y.reshape(2, -1)
        taken = rate * 40 * gut / (25 + gut)
        return np.concatenate([-taken, taken / 20 - k * c])

    begin = np.concatenate([np.full(NETWORK_SUBJECTS, 100.0), np.zeros(NETWORK_SUBJECTS)])
    end = solve_ivp(slopes, UPTAKE_TIMES[[0, -1]], begin, t_eval=UPTAKE_TIMES, rtol=1e-8, atol=1e-8)
    return end.y[NETWORK_SUBJECTS:] + 0.05 * rng.standard_normal((NETWORK_SUBJECTS, len(UPTAKE_TIMES)))


def as_uptake(ys: np.ndarray) -> nf.Dataset:
    data = nf.Dataset.from_arrays(UPTAKE_TIMES, ys[..., None], states=["c"])
    return nf.with_events(data, [{"time": 0.0, "state": "gut", "add": 100.0}])


def predict_alone(known: KnownPopulation, ys: np.ndarray) -> np.ndarray:
    """The prediction of a subject by the constants that fit its own rows best, beside the network of a population."""
    subjects = Subjects.of(known.model, known.structure.coordinates, as_uptake(ys[None]))
    subjects = replace(subjects, steps=max(known.steps, 4))
    first, effects, rows = subjects.first(), list(known.structure.effects), np.isfinite(ys)

    def predict(at: np.ndarray) -> np.ndarray:
        phi = first.copy()
        phi[effects] = at
        return np.asarray(subjects.expand(phi[None, None]).f)[0, :, 0]

    end = least_squares(lambda at: predict(at)[rows] - ys[rows], first[effects], bounds=(-6, 6))
    return predict(end.x)


def measure_network(splits: int) -> None:
    """The errors of the last five rows of left-out subjects, predicted from their first three."""
    equations = {"gut": "-s*gut*exp(f)", "c": "s*gut*exp(f)/20 - k*c"}
    field = functools.partial(
        nf.Hybrid, equations=equations, constants={"s": 1.0, "k": 1.0}, terms={"f": 1.0}, sees=["gut"], rest=False
    )
    row("split", "effects of s and k", "pooled", "one fit a subject", "status")
    row("---", "---", "---", "---", "---")
    errors: list[list[float]] = []
    for seed in range(splits):
        ys = simulate_uptake(seed)
        left, kept = ys[: NETWORK_SUBJECTS // 4], ys[NETWORK_SUBJECTS // 4 :]
        few, unknown = np.where(np.arange(ys.shape[1]) < FIRST_ROWS, left, np.nan), np.full_like(left, np.nan)
        fit = nf.fit_population(as_uptake(kept), random=["s", "k"], field=field)
        # All subjects have the constants that fit all of them best, with a network of their own.
        structure = replace(
            fit.structure,
            coordinates=tuple(replace(c, kind=None) for c in fit.structure.coordinates),
            covariances=Covariances(()),
        )
        subjects = replace(fit.problem.subjects, coordinates=structure.coordinates)
        pooled = search_from_starts(Population(subjects, structure), "focei")[0]
        shared = KnownPopulation.of(pooled, "focei", fit.data.trajectories).predict(as_uptake(unknown)).ys[..., 0]
        predictions = (
            fit.predict(as_uptake(few)).ys[..., 0],
            shared,
            np.stack([predict_alone(fit.known, own) for own in few]),
        )
        errors.append([float(np.sqrt(np.mean((predicted - left)[:, FIRST_ROWS:] ** 2))) for predicted in predictions])
        row(seed, *errors[-1], fit.status)
    row("mean", *np.mean(errors, axis=0).tolist(), "")
    table = np.array(errors)
    row("better with effects", "", *(f"{int((table[:, 0] < table[:, at]).sum())} of {splits}" for at in (1, 2)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--cases", nargs="*", default=["wang", "theophylline", "saem", "warfarin", "warfarin-effect"])
    parser.add_argument("--studies", type=int, default=0, help="number of simulated studies")
    parser.add_argument("--censored", type=int, default=0, help="number of simulated studies with a limit")
    parser.add_argument("--network", type=int, default=0, help="number of simulated studies with an unknown uptake")
    given = parser.parse_args()
    for case in given.cases if given.data else ():
        print(f"\n{case}\n")
        {
            "wang": lambda: measure_wang(given.data / "theophylline"),
            "theophylline": lambda: measure_theophylline(given.data / "theophylline"),
            "saem": lambda: measure_saem(given.data / "theophylline"),
            "warfarin": lambda: measure_warfarin(given.data / "warfarin", effect=False),
            "warfarin-effect": lambda: measure_warfarin(given.data / "warfarin", effect=True),
        }[case]()
    if given.studies:
        print(f"\n{given.studies} simulated studies\n")
        measure_studies(given.studies)
    if given.censored:
        print(f"\n{given.censored} simulated studies with a limit\n")
        measure_censored(given.censored)
    if given.network:
        print(f"\n{given.network} simulated studies with an unknown uptake\n")
        measure_network(given.network)


if __name__ == "__main__":
    main()
