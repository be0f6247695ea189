"""SBML models of published PEtab problems simulated beside libRoadRunner (`pip install libroadrunner`).

    python scripts/accuracy/sbml.py ../shared/petab/problems

All states of each model are compared at 101 times up to the last measurement, for each experiment, at the stored
parameters. Experiments begin at the model's initial values, without an equilibrium before. libRoadRunner solves at a
relative tolerance of 1e-10, node_fit at its default.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import libsbml
import numpy as np
import roadrunner
from jaxtyping import Float

import node_fit
from node_fit.expressions.evaluation import evaluate
from node_fit.expressions.tree import Number, Symbol
from node_fit.likelihood.losses import Squares
from node_fit.petab.tables import Condition, Measurement, Observable, Problem

POINTS = 101


def experiment_values(problem: Problem, name: str) -> dict[str, float]:
    """What the parameters and the last condition of an experiment set."""
    values = {each: parameter.nominal for each, parameter in problem.parameters.items()}
    values |= {
        each: float(formula.value)
        for each, formula in problem.model.initial.items()
        if isinstance(formula, Number) and each not in values
    }
    changes = problem.experiments[name][-1].changes
    set_values = {each: float(evaluate(formula, values)) for each, formula in changes.items()}
    return {each: value for each, value in {**values, **set_values}.items() if math.isfinite(value)}


def simulate(problem: Problem, values: Mapping[str, float], times: list[float]) -> Float[np.ndarray, "state time"]:
    """All states by node_fit."""
    changes = {name: Number(value) for name, value in values.items() if name in problem.model.initial}
    states = list(problem.model.rates)
    alone = replace(
        problem,
        observables={
            f"of_{name}": Observable(f"of_{name}", Symbol(name), Number(1.0), Squares(), "lin", (), ())
            for name in states
        },
        experiments={"only": (Condition(0.0, changes),)},
        measurements=tuple(
            Measurement(f"of_{name}", "only", time, 0.0, (), (), {}) for name in states for time in times
        ),
    )
    objective = node_fit.objective(alone)
    return objective.simulate(objective.nominal).reshape(len(states), -1)


def simulate_by_roadrunner(
    path: Path, problem: Problem, values: Mapping[str, float], times: list[float]
) -> Float[np.ndarray, "state time"]:
    """All states by libRoadRunner, of the file with the values written into it."""
    document = libsbml.readSBMLFromFile(str(path))
    model = document.getModel()
    for name, value in values.items():
        element = model.getElementBySId(name)
        if isinstance(element, libsbml.Parameter):
            element.setValue(value)
        elif isinstance(element, libsbml.Compartment):
            element.setSize(value)
        elif isinstance(element, libsbml.Species) and name in problem.model.containers:
            element.setInitialConcentration(value)
        elif isinstance(element, libsbml.Species):
            element.setInitialAmount(value)
        else:
            continue
        model.removeInitialAssignment(name)
    runner = roadrunner.RoadRunner(libsbml.writeSBMLToString(document))
    runner.integrator.setValue("relative_tolerance", 1e-10)
    runner.integrator.setValue("absolute_tolerance", 1e-12)
    runner.integrator.setValue("maximum_num_steps", 1_000_000)
    names = [f"[{name}]" if name in problem.model.containers else name for name in problem.model.rates]
    return np.array(runner.simulate(times[0], times[-1], len(times), ["time", *names]))[:, 1:].T


def compare(path: Path) -> str:
    """A row of the table: the largest difference of a state, over its largest value."""
    problem = node_fit.read_petab(path)
    sbml = next(iter(path.parent.glob("model_*.xml")))
    end = max(each.time for each in problem.measurements if math.isfinite(each.time))
    times, worst = np.linspace(0.0, end, POINTS).tolist(), 0.0
    for name in problem.experiments:
        values = experiment_values(problem, name)
        ours = simulate(problem, values, times)
        theirs = simulate_by_roadrunner(sbml, problem, values, times)
        sizes = np.abs(theirs).max(1, keepdims=True)
        worst = max(worst, float((np.abs(ours - theirs) / np.where(sizes > 0, sizes, 1.0)).max()))
    return f"| {path.stem} | {len(problem.experiments)} | {len(problem.model.rates)} | {worst:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of a problem's name")
    arguments = parser.parse_args()
    print("| problem | experiments | states | largest difference |\n|---|---|---|---|")
    for path in sorted(arguments.folder.glob("*/*.yaml")):
        if arguments.only in path.stem:
            print(compare(path), flush=True)


if __name__ == "__main__":
    main()
