"""Published PEtab problems: log-likelihoods at the stored parameters, times, and fits from random starts.

    python scripts/accuracy/petab.py ../shared/petab/problems             # likelihoods and times
    python scripts/accuracy/petab.py ../shared/petab/problems --starts 20 # fits as well
    python scripts/accuracy/petab.py ../shared/petab/problems --models    # experiments as models of their own
    python scripts/accuracy/petab.py ../shared/petab/problems --only Boehm
    python scripts/accuracy/petab.py ../shared/petab/problems --only Chen --first # of models with hundreds of states

The folder has one folder for each problem, as in https://github.com/Benchmarking-Initiative/Benchmark-Models-PEtab.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import node_fit
from node_fit.petab.experiment_model import conditions_of, make_experiment_models

# Log-likelihoods at the stored parameters, as the collection of problems publishes them.
PUBLISHED = {
    "Boehm_JProteomeRes2014": -138.2220,
    "Crauste_CellSystems2017": -190.9652,
    "Fiedler_BMCSystBiol2016": 58.5839,
    "Bruno_JExpBot2016": 46.6882,
    "Elowitz_Nature2000": 63.2028,
    "Borghans_BiophysChem1997": 83.3237,
    "Brannmark_JBC2010": -141.8891,
}


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """The shortest of several times of a call."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def measure(path: Path) -> str:
    """A row of the table of likelihoods and times."""
    objective = node_fit.objective(node_fit.read_petab(path))
    x = objective.nominal
    compile_value = seconds(lambda: objective.log_likelihood(x))
    compile_gradient = seconds(lambda: objective.gradient(x))
    value = seconds(lambda: objective.log_likelihood(x), 10)
    gradient = seconds(lambda: objective.gradient(x), 10)
    found = objective.log_likelihood(x)
    published = PUBLISHED.get(path.stem, np.nan)
    return (
        f"| {path.stem} | {found:.4f} | {published:.4f} | {1e3 * value:.1f} ms | {1e3 * gradient:.1f} ms | "
        f"{compile_value:.1f} s | {compile_gradient:.1f} s |"
    )


def measure_first(path: Path) -> str:
    """A row of the table of first values: seconds from reading the problem on, compiling included."""
    begin = time.perf_counter()
    objective = node_fit.objective(node_fit.read_petab(path))
    found = objective.log_likelihood(objective.nominal)
    passed = time.perf_counter() - begin
    return f"| {path.stem} | {len(objective.system.moving)} | {found:.4f} | {passed:.0f} s |"


def fit_from_starts(path: Path, starts: int, seed: int, minutes: float) -> str:
    """A row of the table of fits, of as many starts as the time allows; minutes are those of processors."""
    begin = time.process_time()

    def passed() -> float:
        return (time.process_time() - begin) / 60

    problem = node_fit.read_petab(path)
    fit = node_fit.fit_petab(problem, restarts=starts, seed=seed, nominal=False, on_fit=lambda _: passed() > minutes)
    values = np.array([each.log_likelihood for each in fit.attempts])
    near = int(np.sum(values >= values.max() - 0.1))
    return f"| {path.stem} | {values.max():.4f} | {near} of {len(values)} | {passed():.1f} |"


def compare_models(path: Path) -> str:
    """A row of the table of experiments as models: the largest difference from the problem's own simulations, over the
    largest value of the observable in the experiment."""
    objective = node_fit.objective(node_fit.read_petab(path))
    x, problem = objective.nominal, objective.problem
    simulated, refused, worst = objective.simulate(x), 0, 0.0
    for name, model in make_experiment_models(objective, x, list(problem.experiments)):
        if isinstance(model, ValueError):
            refused += 1
            continue
        own = [(at, each) for at, each in enumerate(problem.measurements) if each.experiment == name]
        times = sorted({conditions_of(problem, name)[0].time, *(each.time for _, each in own if each.time < np.inf)})
        predicted = dict(zip(times, model.predict(ts=np.array(times)), strict=True))
        for observable in {each.observable for _, each in own}:
            of_it = [(at, each) for at, each in own if each.observable == observable and each.time < np.inf]
            overrides = list(dict.fromkeys(each.overrides for _, each in of_it))
            for at, each in of_it:
                place = overrides.index(each.overrides) + 1
                channel = observable if place == 1 else f"{observable}_{place}"
                value = predicted[each.time][model.states.index(channel)]
                size = max(abs(simulated[other]) for other, _ in of_it)
                worst = max(worst, abs(value - simulated[at]) / size if np.isfinite(value) else np.inf)
    return f"| {path.stem} | {len(problem.experiments)} | {refused} | {worst:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of a problem's name")
    parser.add_argument("--starts", type=int, default=0, help="how many random starts to fit from")
    parser.add_argument("--models", action="store_true", help="experiments as models, beside the problem's simulations")
    parser.add_argument("--first", action="store_true", help="the log-likelihood, and how long its first call takes")
    parser.add_argument("--minutes", type=float, default=np.inf, help="the most for the starts of a problem")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    paths = [path for path in sorted(arguments.folder.glob("*/*.yaml")) if arguments.only in path.stem]
    if arguments.models:
        print("| problem | experiments | refused | largest difference |\n|---|---|---|---|")
    elif arguments.first:
        print("| problem | states | log-likelihood | first objective |\n|---|---|---|---|")
    elif arguments.starts:
        print("| problem | best log-likelihood | within 0.1 of it | minutes of a core |\n|---|---|---|---|")
    else:
        print("| problem | log-likelihood | published | objective | gradient | first objective | first gradient |")
        print("|---|---|---|---|---|---|---|")
    for path in paths:
        if arguments.models:
            print(compare_models(path), flush=True)
        elif arguments.first:
            print(measure_first(path), flush=True)
        elif arguments.starts:
            print(fit_from_starts(path, arguments.starts, arguments.seed, arguments.minutes), flush=True)
        else:
            print(measure(path), flush=True)


if __name__ == "__main__":
    main()
