"""The command `python -m node_fit.sample`: draws from the posterior of a run's fit, or of a PEtab problem."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from ..app.config.build import build_parts, errors_of_data, is_population
from ..app.console import make_console
from ..app.population_run import PopulationTask
from ..app.run_directory import CONFIG, RunDirectory
from ..app.run_logger import Interruption
from ..data.dataset import Splits
from ..data.facts import Facts
from ..discover.__main__ import with_run_data
from ..fitting.progress import Display
from ..fitting.resolve import resolve
from ..fitting.result import Fit
from ..model.ensemble import Ensemble
from ..petab.tables import read_petab
from ..population.fit import PopulationFit
from ..report.run_files import read_json
from ..runtime.compilation import keep_programs
from ..runtime.placement import scope
from ..runtime.serialization import Json, __version__, is_json
from ..storage.files import explain_disk, write_file
from ..storage.model_file import load
from .sampling import Posterior, check_settings, sample

DRAWS_FILE, POSTERIOR_FILE = "posterior.parquet", "posterior.json"
PETAB_SUFFIXES = (".yaml", ".yml")


def main() -> None:
    """Parses the command line, and writes the draws and their summary."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.sample",
        description="Draw from the posterior of a fit by the No-U-Turn Sampler. Writes posterior.parquet, with a row "
        "for each draw, and posterior.json, with quantiles, R-hat and effective draws.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a run directory, such as outputs/DATE/TIME, or a PEtab problem's YAML")
    parser.add_argument("--draws", type=int, default=1000, help="draws of each chain")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=500, help="steps before the draws, which adapt the sampler")
    parser.add_argument("--acceptance", type=float, default=0.8, help="the share of steps to accept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the folder to write; by default that of the run")
    options = parser.parse_args()
    out = options.out or (options.run if options.run.is_dir() else options.run.parent)
    settings = {key: getattr(options, key) for key in ("draws", "chains", "warmup", "acceptance", "seed")}
    console = make_console()
    say = functools.partial(console.print, soft_wrap=True, markup=False)
    try:
        with Display(console) as display, Interruption(say, lambda: say("stopped by SIGINT; no draws were written")):
            check_settings(**settings)
            posterior = draw_posterior(options.run, settings, display.say)
            out.mkdir(parents=True, exist_ok=True)
            posterior.save(out / DRAWS_FILE)
            write_file(out / POSTERIOR_FILE, json.dumps(summarise_posterior(posterior), indent=2).encode())
    except OSError as error:
        print(f"error: {explain_disk(error, out, '--out')}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, ImportError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(posterior)
    print(f"draws: {out / DRAWS_FILE}")


def draw_posterior(run: Path, settings: Json, tell: Callable[[str], None]) -> Posterior:
    """Draws from the posterior of a run directory's fit, or of a PEtab problem; `tell` is called for each stage."""
    if run.suffix in PETAB_SUFFIXES:
        return sample(read_petab(run), **settings, tell=tell)
    return sample_run(run, settings, tell)


def sample_run(run: Path, settings: Json, tell: Callable[[str], None]) -> Posterior:
    """Draws from the posterior of the fit of a run directory.

    **Raises:** `ValueError` or `OSError` with a sentence as its message.
    """
    if not (run / CONFIG).is_file():
        raise FileNotFoundError(
            f"{run} is neither a run directory nor a PEtab problem; name a directory such as outputs/DATE/TIME, or "
            "problem.yaml."
        )
    config = cast(DictConfig, OmegaConf.load(run / CONFIG))
    config = with_run_data(run, config)
    keep_programs(False if config.get("compile_cache") is False else "auto")
    with scope(config.precision):
        tell("fitting the population again" if is_population(config) else "opening the run")
        return sample(reopen_fit(run, config), **settings, tell=tell)


def reopen_fit(run: Path, config: DictConfig) -> Fit | PopulationFit:
    """Restores the fit of a run from its model, config and data; a population is fitted again.

    **Raises:** `ValueError` if the data are no longer those of the run.
    """
    if is_population(config):
        task = PopulationTask.of(config)
        check_record(run, task.splits)
        return task.fit()
    parts = build_parts(config)
    with errors_of_data():
        splits = parts.load_with_notes()[0]
    check_record(run, splits)
    model = load(RunDirectory(run).model, extensions=list(config.extensions))
    single = (model.center or model.members[0]) if isinstance(model, Ensemble) else model
    facts, summary = Facts.of(splits.train, splits.validation), read_json(run / "summary.json")
    options = resolve(parts.options, facts).options.with_ridge(chosen_ridge(summary))
    return Fit(
        single,
        "completed",
        "read from its run",
        [],
        steps=0,
        parameters=0,
        compiles=0,
        cached=0,
        compile_seconds=0.0,
        train_seconds=0.0,
        data=splits.named(),
        options=options,
    )


def check_record(run: Path, splits: Splits) -> None:
    """Rejects data other than those that a run was fitted to."""
    if not RunDirectory(run).was_fitted_to(splits.train):
        raise ValueError(f"what data.path of {run / CONFIG} names is not what the model was fitted to, by its record.")


def chosen_ridge(summary: Json) -> float:
    """Returns the prior weight that a run has chosen; 0 if it has chosen none."""
    choices = summary.get("choices")
    choice = choices.get("penalty.ridge") if is_json(choices) else None
    return float(str(choice["value"])) if is_json(choice) else 0.0


def summarise_posterior(posterior: Posterior) -> Json:
    """Summarises draws for JSON; non-finite numbers become None."""

    def jsonable(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "constants": {
            name: {"lower": jsonable(low), "median": jsonable(middle), "upper": jsonable(high)}
            for name, (low, middle, high) in posterior.quantiles().items()
        },
        "rhat": {name: jsonable(value) for name, value in posterior.rhat.items()},
        "effective": {name: jsonable(value) for name, value in posterior.effective.items()},
        "divergences": int(posterior.diverging.sum()),
        "prior": posterior.prior,
        "sentence": posterior.sentence,
        "seconds": round(posterior.seconds, 3),
    }


if __name__ == "__main__":
    main()
