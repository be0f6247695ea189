"""Objectives and gradients of PEtab problems beside AMICI's, in turns on this machine.

    python scripts/speed/petab_beside_amici.py ../shared/petab/problems --amici AMICI/bin/python --only Boehm Brannmark

AMICI has an environment of its own (`pip install amici swig scipy`, with its `bin` on the path for SWIG); it compiles a
problem once, into the folder `--build`. Each figure is the shortest of several calls: log-likelihood at the stored
parameters, and its gradient, by AMICI's adjoints (whole PEtab call, one thread, rtol 1e-8, atol 1e-10 but for problems
that begin at a steady state, which it does by forward sensitivities).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CALLS, SECONDS = 10, 20.0


def shortest(call: Callable[[], object]) -> float:
    """Seconds of the shortest of some calls, of which there are fewer if each is long."""
    call()
    times, begin = [], time.perf_counter()
    while len(times) < CALLS and (not times or time.perf_counter() - begin < SECONDS):
        at = time.perf_counter()
        call()
        times.append(time.perf_counter() - at)
    return min(times)


def measure_amici(path: Path, build: Path) -> dict[str, float]:
    import logging

    import petab.v1 as petab
    import yaml
    from amici.importers.petab.v1 import import_petab_problem
    from amici.sim.sundials import SensitivityMethod, SensitivityOrder
    from amici.sim.sundials.petab.v1 import simulate_petab

    sys.setrecursionlimit(20_000)
    logging.disable(logging.WARNING)
    config = yaml.safe_load(path.read_text())
    for each in config["problems"]:
        each.pop("visualization_files", None)
    problem = petab.Problem.from_yaml(config, base_path=str(path.parent))
    petab.flatten_timepoint_specific_output_overrides(problem)  # AMICI reads no other problems.
    begin = time.perf_counter()
    model = import_petab_problem(problem, output_dir=build / path.stem, verbose=False)
    compiled = time.perf_counter() - begin
    solver = model.create_solver()
    solver.set_relative_tolerance(1e-8)
    solver.set_absolute_tolerance(1e-10)

    def run() -> dict[str, object]:
        return simulate_petab(problem, amici_model=model, solver=solver, log_level=logging.CRITICAL)

    found = {"log_likelihood": float(run()["llh"]), "compile": compiled, "objective": shortest(run)}
    solver.set_sensitivity_order(SensitivityOrder.first)
    solver.set_sensitivity_method(SensitivityMethod.adjoint)
    if (
        "preequilibrationConditionId" in problem.measurement_df
        and problem.measurement_df["preequilibrationConditionId"].notna().any()
    ):
        solver.set_sensitivity_method(SensitivityMethod.forward)
    return found | {"gradient": shortest(run)}


def measure_ours(path: Path) -> dict[str, float]:
    import node_fit

    begin = time.perf_counter()
    objective = node_fit.objective(node_fit.read_petab(path))
    x = objective.nominal
    value = float(objective.log_likelihood(x))
    first = time.perf_counter() - begin
    objective.gradient(x)
    return {
        "log_likelihood": value,
        "compile": time.perf_counter() - begin,
        "first": first,
        "objective": shortest(lambda: objective.log_likelihood(x)),
        "gradient": shortest(lambda: objective.gradient(x)),
    }


def in_process(python: str, who: str, path: Path, build: Path) -> dict[str, float]:
    """A measurement in a process of its own."""
    environment = os.environ | {
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [python, __file__, str(path), "--measure", who, "--build", str(build)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--amici", default="", help="the Python of an environment that has AMICI")
    parser.add_argument("--build", type=Path, default=Path("amici_models"), help="where AMICI's models are compiled")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of problems' names")
    parser.add_argument("--measure", choices=["amici", "node_fit"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        path = arguments.folder
        found = measure_amici(path, arguments.build) if arguments.measure == "amici" else measure_ours(path)
        print(json.dumps(found))
        return
    print(
        "| problem | log-likelihood, ours | AMICI's | objective [ms], ours / AMICI's | gradient [ms], ours / AMICI's |"
    )
    print("|---|---|---|---|---|")
    for path in sorted(arguments.folder.glob("*/*.yaml")):
        if not any(part in path.stem for part in arguments.only):
            continue
        ours = in_process(sys.executable, "node_fit", path, arguments.build)
        theirs = in_process(arguments.amici, "amici", path, arguments.build.resolve()) if arguments.amici else {}
        cells = [f"{each.get('log_likelihood', float('nan')):.4f}" for each in (ours, theirs)]
        for key in ("objective", "gradient"):
            cells.append(" / ".join(f"{1e3 * each.get(key, float('nan')):.1f}" for each in (ours, theirs)))
        print(f"| {path.stem} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
