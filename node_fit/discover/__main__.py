"""The command `python -m node_fit.discover`: finds equations in the training data and fits their constants."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import dataclasses
import functools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from ..app.application import run_command
from ..app.config.build import build_parts, errors_of_data
from ..app.config.composition import ConfigError, read_config
from ..app.launching import launch, print_error, register, wants_tracebacks
from ..app.run_directory import CONFIG, RunDirectory, read_record
from ..data.tables.table import list_names
from ..fitting.discovery import Discovery, Limits, discover, discover_in
from ..fitting.progress import Display
from ..options.options import Options
from ..report.page import jsonable_numbers, jsonable_times
from ..report.pages import make_run_page, to_columns
from ..report.run_files import DISCOVERY_NAME
from ..runtime.serialization import Json
from ..startup import BEGAN
from ..storage.files import write_file
from ..storage.model_file import load
from .names import rename_columns
from .search import RESAMPLES, Vocabulary, sample_records
from .watch import SearchWatch

USAGE = """\
usage: python -m node_fit.discover data=table data.path=FILE 'data.states=[x,y]' [effort=quick] [KEY=VALUE ...]
       python -m node_fit.discover RUN [effort=quick] [KEY=VALUE ...]

Find equations in the training data, or in the field of the model of a run, such as outputs/DATE/TIME, and write the run
of a fit of their constants. The keys are those of `python -m node_fit`, except field, and with RUN, data and hidden;
effort=quick, normal or thorough says how many candidates are simulated.

  'discover.libraries=[linear,cubic,trigonometric]'   libraries of terms
  'discover.terms=[x^2/(1 + x)]'                      further terms; also discover.required, discover.forbidden
  'discover.conserved=[S + I + R]'                    sums of states that stay as they are
  discover.mass_action=true                           rates of reactions between at most two molecules
  discover.symbolic=false                             no symbolic regression, even if pyoperon is installed
  discover.resamples=20                               resamples for the share of each term
  discover.seconds=600                                ends the search with the best so far; Ctrl-C does, too

The run directory also has discovery.json (all systems, the front, rivals, shares of terms), and
experiment/discovered.yaml: python -m node_fit --config-dir RUN experiment=discovered fits the equations again."""
# Number of systems whose curves are written, and minimum number of points per curve.
SHOWN, FINE_ROWS = 5, 300
SEARCH_KEYS = (
    "libraries",
    "terms",
    "required",
    "forbidden",
    "conserved",
    "mass_action",
    "symbolic",
    "resamples",
    "seconds",
)


def main() -> None:
    """Composes the config, finds equations and fits them; exits with 0, or with 1 if none explains the data."""
    if sys.argv[1:2] in (["--help"], ["-h"]):
        print(USAGE)
        return
    imported = time.perf_counter() - BEGAN
    tracebacks = wants_tracebacks()
    codes: list[int] = []

    def job(config: DictConfig) -> int:
        register()
        try:
            config = with_plain_columns(config) if run is None else with_run_data(run, config)
            discovery = search_with_progress(config, run, options)
            print(discovery, flush=True)
            if discovery.interrupted and not discovery.renamed:
                codes.append(keep_interrupted(config, discovery))
                return codes[-1]
            if not discovery.explained:
                codes.append(1)
                return 1
            for name, plain in discovery.renamed.items():
                raise ConfigError(f"the equations are not fitted; rename the column {name!r} of the file to {plain}.")
            codes.append(run_command(with_equations(config, discovery), imported, tracebacks))
            if codes[-1] == 0:
                folder = Path(HydraConfig.get().runtime.output_dir)
                write_discovery(folder, config, discovery)
                if config.report:
                    make_run_page(folder)
        except Exception as error:  # Hydra would add its own text.
            if tracebacks:
                raise
            print_error(error)
            codes.append(1)
        return codes[-1]

    run = take_run(sys.argv)
    check_overrides(sys.argv[1:], run)
    options = take_options(sys.argv)
    launch("node_fit.discover", "config", job, tracebacks)
    sys.exit(max(codes, default=0))


def take_run(words: list[str]) -> Path | None:
    """Removes a run directory from the command line and returns it; None if no word is one."""
    named = [word for word in words[1:] if not word.startswith("-") and (Path(word) / CONFIG).is_file()]
    if not named:
        return None
    words.remove(named[0])
    return Path(named[0])


def check_overrides(words: list[str], run: Path | None) -> None:
    """Exits with a message if a word sets the field, which is searched for, or a setting that the run determines."""
    of_run = () if run is None else ("data", "hidden", "precision")
    for word in words:
        group = word.lstrip("+").partition("=")[0].partition(".")[0]
        if group == "field":
            print_error(ConfigError(f"{word}: the field is searched for; leave it out, or use python -m node_fit."))
            sys.exit(1)
        if group in of_run:
            print_error(ConfigError(f"{word}: {group} is that of the run {run}; leave it out."))
            sys.exit(1)


def take_options(words: list[str]) -> Json:
    """Removes the options of the search, `discover.KEY=VALUE`, from the command line and returns their values."""
    assignments = [word for word in words if word.lstrip("+").startswith("discover.")]
    words[:] = [word for word in words if word not in assignments]
    options = OmegaConf.from_dotlist([word.lstrip("+").removeprefix("discover.") for word in assignments])
    for key in options:
        if key not in SEARCH_KEYS:
            print_error(ConfigError(f"discover.{key} is not known; the keys are {', '.join(SEARCH_KEYS)}."))
            sys.exit(1)
    return {
        str(key): OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for key, value in options.items()
    }


def search_with_progress(config: DictConfig, run: Path | None, options: Json) -> Discovery:
    """Searches data or a run's model for equations and shows progress; Ctrl-C ends the search with the best so far."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Display(Console(highlight=False)) as display:
            tell = functools.partial(show_progress, display)
            return search_data(config, options, tell) if run is None else search_run(run, config, options, tell)
    finally:
        signal.signal(signal.SIGINT, before)


def show_progress(display: Display, what: str) -> None:
    display.say(f"searching: {what}")


def keep_interrupted(config: DictConfig, found: Discovery) -> int:
    """Writes the results of an interrupted search to the run directory; returns the exit code of Ctrl-C."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    config = with_equations(config, found)
    write_discovery(folder, config, found)
    print(f"fit the equations: python -m node_fit --config-dir {folder} experiment=discovered")
    return 128 + signal.SIGINT


def search_data(config: DictConfig, options: Json, tell: Callable[[str], object]) -> Discovery:
    """Searches the training data of a config for equations."""
    with errors_of_data():
        splits, _ = build_parts(config).data.load_with_notes()
    rows, records = int(splits.train.lengths.sum()), len(splits.train.trajectories)
    names = list_names(splits.train.states)
    print(f"searching equations of {names} in {rows} rows of {records} record{'s' * (records > 1)}", flush=True)
    return discover(splits.train, effort=config.effort, seed=int(config.seed), tell=tell, **options)


def with_plain_columns(config: DictConfig) -> DictConfig:
    """Returns the config of a table with valid names of states and inputs; prints the new names."""
    data = cast(dict[str, object], OmegaConf.to_container(config.data, resolve=False))
    if "rename" not in data:
        return config
    changed = rename_columns(data)
    if changed["rename"] != data["rename"]:
        with open_dict(config):
            config.data = OmegaConf.create(changed)
        names = ", ".join(f"{short} is {name!r}" for short, name in cast(dict[str, str], changed["rename"]).items())
        print(f"data.rename: equations need plain names: {names}", flush=True)
    return config


def with_run_data(run: Path, config: DictConfig) -> DictConfig:
    """Returns the config with the data of a run; relative paths are resolved from its working directory."""
    stored, record = read_config(run / CONFIG), read_record(run.absolute(), str(run))
    data = dict(stored.get("data") or {})
    for key in ("path", "events"):
        if isinstance(data.get(key), str) and (Path(record["cwd"]) / data[key]).is_file():
            data[key] = str((Path(record["cwd"]) / data[key]).absolute())
    with open_dict(config):
        config.data = OmegaConf.create(data)
        config.precision = stored.get("precision", config.precision)
    return config


def search_run(run: Path, config: DictConfig, options: Json, tell: Callable[[str], object]) -> Discovery:
    """Searches the vector field of a run's model for equations; the config gets the names of its hidden states."""
    model = load(RunDirectory(run).model, extensions=list(config.extensions)).typical
    with errors_of_data():
        splits, _ = build_parts(config).data.load_with_notes()
    with open_dict(config):
        config.hidden = list(model.hidden)
    limits = Limits(
        symbolic=options.pop("symbolic", None),
        resamples=options.pop("resamples", RESAMPLES),
        effort=config.effort,
        seed=int(config.seed),
        watch=SearchWatch(tell, options.pop("seconds", None)),
    )
    return discover_in(model, splits.train, Vocabulary(**options), limits, Options())


def with_equations(config: DictConfig, found: Discovery) -> DictConfig:
    """Returns the config of a fit of the equations, with the discovered constants as initial guess."""
    best = found.known().keywords
    field: Json = {"_target_": "node_fit.Known", "_partial_": True, "triggers": []}
    with open_dict(config):
        config.field = OmegaConf.create(field | best)
    return config


def write_discovery(run: Path, config: DictConfig, found: Discovery) -> None:
    """Writes the results next to the fit of the best equations, and an experiment that fits these again."""
    listed = {"ranked": found.ranked, "front": found.front, "rivals": found.rivals}
    systems = {name: [dataclasses.asdict(system) for system in ranking] for name, ranking in listed.items()}
    summary = {"verdict": found.verdict, "shares": found.shares, "weights": found.weights.tolist()}
    text = json.dumps(summary | systems | {"curves": curves_of(found)}, indent=1)
    write_file(run / DISCOVERY_NAME, text.encode())
    (run / "experiment").mkdir(exist_ok=True)
    write_file(run / "experiment" / "discovered.yaml", experiment_text(config, found).encode())


def curves_of(found: Discovery) -> Json:
    """Returns the first record, and its simulation by each of the first systems, by state."""
    data = sample_records(found.data)
    rows = int(data.lengths[0])
    times, fine = data.ts[0, :rows], np.linspace(data.ts[0, 0], data.ts[0, rows - 1], max(rows, FINE_ROWS))
    us = {name: np.interp(fine, times, data.us[0, :rows, column]) for column, name in enumerate(data.inputs)}
    solved = [system.simulate(list(system.start.values()), fine, us) for system in found.ranked[:SHOWN]]
    measured = {name: jsonable_numbers(data.ys[0, :rows, column]) for column, name in enumerate(data.states)}
    return {
        "record": str(data.trajectories[0]),
        "time": data.time,
        "times": jsonable_times(times),
        "measured": measured,
        "fine": jsonable_times(fine),
        "systems": [None if ys is None else to_columns(ys) for ys in solved],
    }


def experiment_text(config: DictConfig, found: Discovery) -> str:
    """Writes an experiment with the data, the equations, and the initial constants of the fit."""
    kept = OmegaConf.create({"data": config.data, "field": config.field})
    if isinstance(kept.data.get("path"), str) and Path(kept.data.path).exists():
        kept.data.path = str(Path(kept.data.path).absolute())
    for group in kept.values():
        for key in ("_target_", "_partial_"):
            group.pop(key, None)
    groups = ["override /data: table", "override /field: known"]
    if OmegaConf.is_config(config.start) and str(config.start.get("_target_", "")).endswith("Fitted"):
        groups.append("override /start: fitted")
    chosen = "\n".join(f"  - {group}" for group in groups)
    return f"# @package _global_\n# {found.verdict}\ndefaults:\n{chosen}\n\n{OmegaConf.to_yaml(kept)}"


if __name__ == "__main__":
    main()
