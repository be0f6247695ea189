"""A run of `data=petab`: a PEtab problem is read and fitted, and its directory is written."""

import time

from omegaconf import DictConfig
from rich.console import Console

from ..petab.fitting import ParameterInterval, PEtabFit, fit_petab
from ..storage.disk import write_file
from .config.build import check_top
from .config.instantiate import build
from .config.targets import ConfigError
from .resuming import write_config
from .run_directory import RunDirectory

TARGETS_OF_PROBLEMS = ("node_fit.PEtab", "node_fit.SBML")
DEFAULT_PETAB_STARTS = 10


def is_petab(config: DictConfig) -> bool:
    """Whether a config's data are a PEtab problem, or a model in SBML with a table."""
    return config.data is not None and config.data.get("_target_") in TARGETS_OF_PROBLEMS


def run_petab(
    config: DictConfig, files: RunDirectory, console: Console, began: float, record: dict[str, object]
) -> int:
    """Fits the problem, prints the estimates with intervals, and writes `parameters.tsv`, `simulations.tsv`,
    `summary.json` and a picture of each observable.

    **Arguments:** `record`: how the run was started. `began`: when, in seconds of `time.perf_counter`.

    **Returns:** the exit code.
    """
    if config.resume:
        raise ConfigError("resume: fits of PEtab problems take minutes and are not resumed; leave it out.")
    check_top(config)
    files.check_unused()
    problem = build(config.data, "data").read()
    files.write_record(record, {})
    write_file(files.config, write_config(config).encode())
    console.print(f"run: {files.path}", soft_wrap=True, markup=False)
    console.print(repr(problem), soft_wrap=True, markup=False)
    fit = fit_petab(
        problem, restarts=DEFAULT_PETAB_STARTS if config.restarts == "auto" else int(config.restarts), seed=config.seed
    )
    intervals = {"profile": fit.profiles, "fisher": fit.intervals, "none": dict}[config.confidence]()
    fit.write(files.path)
    fit.plot(files.plots)
    values = [each.log_likelihood for each in fit.attempts]
    files.write_summary(
        {
            "status": "converged",
            "problem": problem.name,
            "log_likelihood": fit.log_likelihood,
            "chi2": fit.objective.chi2(fit.x),
            "measurements": len(problem.measurements),
            "parameters": {name: parameter_row(value, intervals.get(name)) for name, value in fit.parameters.items()},
            "attempts": values,
            "seconds": {"total": round(time.perf_counter() - began, 3)},
        }
    )
    print_fit(console, fit, intervals)
    console.print(f"run: {files.path}", soft_wrap=True, markup=False)
    return 0


def parameter_row(value: float, interval: ParameterInterval | None) -> dict[str, float | bool | None]:
    """A parameter as `summary.json` has it; ends that the data do not give are null."""
    if interval is None:
        return {"value": value}
    ends = (interval.lower, interval.upper) if interval.is_determined else (None, None)
    return {"value": value, "lower": ends[0], "upper": ends[1], "determined": interval.is_determined}


def print_fit(console: Console, fit: PEtabFit, intervals: dict[str, ParameterInterval]) -> None:
    values = [each.log_likelihood for each in fit.attempts]
    near = sum(value >= values[0] - 0.1 for value in values)
    for name, value in fit.parameters.items():
        found = intervals.get(name)
        ends = f"  ({found.lower:.4g} to {found.upper:.4g})" if found and found.is_determined else ""
        unknown = "  (the data do not give it)" if found and not found.is_determined else ""
        console.print(f"{name:>28} = {value:.6g}{ends}{unknown}", soft_wrap=True, markup=False)
    console.print(
        f"log-likelihood {fit.log_likelihood:.4f}, reached within 0.1 by {near} of {len(values)} fits; "
        "parameters.tsv and simulations.tsv are PEtab tables",
        soft_wrap=True,
        markup=False,
    )
    if near == 1 and len(values) > 2:
        console.print(f"only one start came here; try more: restarts={5 * len(values)}", soft_wrap=True, markup=False)
