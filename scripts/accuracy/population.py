"""Measures fits of populations against published objectives and estimates, and the coverage of their intervals.

    python scripts/accuracy/population.py --data DATASETS [--cases wang theophylline] [--studies 100] [--censored 6]

prints tables in Markdown. `DATASETS` has the folders `theophylline` (`theophylline.csv` in NONMEM's columns, and
`wang2007.csv`: table 1 of Wang, J. Pharmacokinet. Pharmacodyn. 34, 2007) and `warfarin` (`warfarin.csv`, as nlmixr2data
has it). `--studies` simulates studies like theophylline's, of 12 subjects and 11 rows each, and needs no data;
neither does `--censored`: such studies of 60 subjects, a fifth of whose rows lie below a limit.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import node_fit as nf

ABSORPTION = {"depot": "-ka*depot", "c": "ka*depot/v - cl/v*c"}
# What simulated studies are drawn from: typical constants, variances of their logarithms, the noise, dose and times.
TRUTH, VARIANCES, NOISE, DOSE = {"ka": 1.59, "cl": 2.75, "v": 31.8}, {"ka": 0.4, "cl": 0.07, "v": 0.02}, 0.7, 320.0
TIMES = np.array([0, 0.25, 0.5, 1, 2, 3.5, 5, 7, 9, 12, 24.0])
SUBJECTS = 12
# Of studies with a limit.
CENSORED_SUBJECTS, CENSORED_SHARE = 60, 0.2
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--cases", nargs="*", default=["wang", "theophylline", "saem", "warfarin", "warfarin-effect"])
    parser.add_argument("--studies", type=int, default=0, help="number of simulated studies")
    parser.add_argument("--censored", type=int, default=0, help="number of simulated studies with a limit")
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


if __name__ == "__main__":
    main()
