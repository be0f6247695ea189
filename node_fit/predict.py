"""The command `python -m node_fit.predict`: predicts trajectories of new data with a fitted model."""

if __name__ == "__main__":
    from .startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .app.config.build import build, check_value, errors_of_data
from .app.config.composition import ConfigError, read_config
from .app.console import pluralize
from .app.run_directory import RunDirectory
from .data.dataset import Dataset
from .data.noise_formula import is_formula
from .data.table_source import Table
from .evaluation.diagnosis import describe_divergence
from .evaluation.metrics import score_rows, where_not_finite
from .evaluation.simulation import predictions_frame
from .model.neural_ode import NeuralODE
from .model.observation import FormulaReadout
from .population.storage import holds_population, read_population
from .runtime.compilation import keep_programs
from .runtime.serialization import Json, __version__, is_json, is_list
from .runtime.validation import check_path
from .solver.triggers import has_triggers
from .storage.files import LEAST_ROOM, check_room, explain_disk, is_stream, write_output
from .storage.model_file import load

TABLE, OUT = "node_fit.Table", "--out"
# Targets of `data` that describe table columns.
TABLES = (TABLE, "node_fit.NONMEM")
# Minimum measured share of the rows that the initial state is read from.
LEAST_READ = 0.5


def main() -> None:
    """Parses the command line and writes the predictions."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.predict",
        description="Predict the trajectories of new data with a fitted model. Each trajectory starts at its first "
        "measurement; later states may be left empty.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a run directory, such as outputs/DATE/TIME")
    parser.add_argument("--data", required=True, nargs="+", help="files with the same columns as the training data")
    parser.add_argument(
        "--events", metavar="FILE", help="doses, resets and switches of the new data, as in data.events"
    )
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --out if it exists")
    parser.add_argument(
        "--extensions",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="packages whose classes the model may use; importing a package runs its code",
    )
    options = parser.parse_args()
    try:
        predict(
            options.run,
            options.data,
            options.out,
            events=options.events,
            overwrite=options.overwrite,
            extensions=options.extensions,
        )
    except OSError as error:
        print(f"error: {explain_disk(error, options.out, OUT)}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def predict(
    run: Path,
    data: Sequence[str],
    out: Path,
    *,
    events: str | None = None,
    overwrite: bool = False,
    extensions: Sequence[str] = (),
) -> None:
    """Predicts the trajectories of new data, and writes them to a CSV file.

    The run directory can be untrusted: nothing that it names is imported or called.

    **Arguments:**

    - `run`: the run directory of the model.
    - `data`: files with the columns of the training data.
    - `out`: the file to write; a device such as `/dev/stdout` is written through.
    - `events`: a file of doses, resets and switches, in the format of the run's.
    - `overwrite`: whether to replace `out` if it exists; never if it is one of `data`.
    - `extensions`: further packages whose classes the model can use.

    **Raises:** `ValueError` or `OSError` with a message.
    """
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise FileNotFoundError(
            f"{run} is not a run directory: it has no config.yaml; name a directory such as outputs/DATE/TIME."
        )
    check_output(out, data, overwrite)
    config = read_config(config_file)
    refuse_experiments(run)
    # Ignore a cache folder named by the run, since it would contain machine code.
    keep_programs(False if config.get("compile_cache") is False else "auto")
    table, level = with_own_events(stored_table(config, config_file), events), stored_level(config)
    stream = sys.stderr if is_stream(out) else sys.stdout
    if holds_population(run):
        population = read_population(run, extensions=extensions)
        with errors_of_data():
            dataset = table.read(list(data) if len(data) > 1 else data[0])
        predictions = population.predict(dataset, level)
        write_output(out, predictions.frame().to_csv(index=False).encode())
        noun = "record" if population.structure.has_occasions else "subject"
        print(f"{describe_ways(predictions.ways, noun)}: {out}", file=stream)
        return
    model = load(RunDirectory(run).model, extensions=extensions)
    unit = dict(model.typical.units).get(model.typical.system.time)  # the fit's unit, not one guessed from the new rows
    with errors_of_data():
        dataset = table.read(list(data) if len(data) > 1 else data[0], unit)
    check_starts(model.typical, dataset)
    predicted = model.bands(dataset, level=level, earlier=True)
    divergence = where_not_finite(score_rows(model.typical.start, dataset), predicted.ys)
    ys, *edges = (finite(part) for part in (predicted.ys, predicted.lower, predicted.upper) if part is not None)
    frame = predictions_frame(dataset, ys, (edges[0], edges[1]) if edges else None)
    write_output(out, frame.to_csv(index=False).encode())
    sizes = (pluralize(len(dataset.trajectories), "trajectory"), pluralize(int(dataset.valid.sum()), "row"))
    print(f"{', '.join(sizes)}: {out}", file=stream)
    if divergence:
        message = describe_divergence(dataset, divergence, triggers=has_triggers(model.typical.field))
        print(f"warning: {message}; its later predictions are left empty.", file=sys.stderr)


def refuse_experiments(run: Path) -> None:
    """Rejects a run of a PEtab problem, which has one model per experiment."""
    files = sorted((run / "models").glob("*.safetensors"))
    if files and not RunDirectory(run).model.exists():
        raise ValueError(
            f"{run} holds a model for each experiment, such as {files[0]}; export takes such a file in place of a run, "
            "and in Python node_fit.load(FILE).predict(ts=times) simulates it."
        )


def describe_ways(ways: Sequence[str], what: str = "subject") -> str:
    """Formats the numbers of subjects, or of their records, by method of prediction."""
    words = {
        "known": "by their mode in the fit",
        "measured": "by their mode given these measurements",
        "population": "as drawn from the population",
    }
    counts = {way: ways.count(way) for way in words if way in ways}
    return ", ".join(f"{pluralize(count, what)} {words[way]}" for way, count in counts.items())


def check_output(out: Path, data: Sequence[str], overwrite: bool) -> None:
    """Rejects an output that would replace a user's file.

    **Raises:** `ValueError` if it is one of the data files, or exists; `FileNotFoundError` if its folder does not.
    """
    check_path(out)
    if is_stream(out):
        return
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} for {out.name} does not exist; create it first.")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file in it, such as {out / 'predictions.csv'}.")
    if any(Path(name).exists() and out.exists() and out.samefile(name) for name in data):
        raise ValueError(f"--out {out} is also one of the files of --data; choose another name.")
    if out.exists() and not overwrite:
        raise ValueError(f"--out {out} exists; choose another name, or add --overwrite to replace it.")
    check_room(folder, LEAST_ROOM, f"{OUT} FILE")


def stored_table(config: Json, path: Path) -> Table:
    """Builds the table of a run's columns, without its split, for new data with the same columns.

    **Arguments:**

    - `config`: the stored config.
    - `path`: its file, for error messages.

    **Raises:** `ConfigError` if it does not describe the columns of a table.
    """
    data = config.get("data")
    if not is_json(data):
        raise ConfigError(f"{path} does not describe the data; name the directory of a run.")
    target = data.get("_target_", TABLE)
    if target not in TABLES:
        raise ConfigError(
            f"data._target_ in {path} is {target!r}, and only {TABLE} is read from a run; read the data yourself, and "
            "predict with node_fit.load(...).predict(...)."
        )
    description = {name: value for name, value in data.items() if name not in ("_target_", "split")}
    sigma = description.get("sigma")
    is_wide = bool(description.get("series"))
    if is_json(sigma) and any(
        isinstance(deviation, str) and not is_formula(deviation, name if is_wide else None)
        for name, deviation in sigma.items()
    ):
        del description["sigma"]  # New data need no column of standard deviations.
    if any(holds_target(value) for value in description.values()):
        raise ConfigError(f"data in {path} names a constructor within a column's description; restore the file.")
    return build({"_target_": target, **description}, "data")


def with_own_events(table: Table, events: str | None) -> Table:
    """Sets the events of new data. The run's own events are kept only if they apply to all trajectories.

    **Raises:** `ValueError` if the run had events of individual trajectories, and the new data have none.
    """
    if events is not None:
        return replace(table, events=events, doses={})
    stored = table.events
    if stored is not None and (
        isinstance(stored, str) or any("trajectory" in row or table.trajectory in row for row in stored)
    ):
        raise ValueError(
            "the model was fitted to data with events (data.events); name a file with those of the new data, --events "
            "FILE. If they have none, a line of column names is enough."
        )
    return table


def holds_target(node: object) -> bool:
    children = node.values() if is_json(node) else node if is_list(node) else ()
    return (is_json(node) and "_target_" in node) or any(holds_target(child) for child in children)


def stored_level(config: Json) -> float:
    """Returns the level of an ensemble's bands."""
    evaluation = config.get("evaluation")
    level = evaluation.get("level", 0.9) if is_json(evaluation) else 0.9
    return check_value(level, float, "evaluation.level")


def finite(ys: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(ys), ys, np.nan)


def check_starts(model: NeuralODE, data: Dataset) -> None:
    """Rejects trajectories that lack an initial value, or too many of the rows that the model estimates it from.

    States whose initial value the user has set need none.
    """
    known_starts = dict(zip(model.latent, model.start.guess.is_stated, strict=True))
    rows = model.start.read_rows
    for row, name in enumerate(data.trajectories):
        measured = int(np.isfinite(data.ys[row, :rows]).any(axis=1).sum())
        if rows > 1 and measured < LEAST_READ * rows:
            raise ValueError(
                f"trajectory {name!r} has {measured} of the {rows} first rows measured, from which the start of this "
                f"model is read; measure them, or put {rows} rows at rest before the first predicted row."
            )
        for column, state in enumerate(data.states):
            if isinstance(model.observation, FormulaReadout) and state not in model.latent:
                continue  # The state behind a formula has its own initial value.
            if not np.isfinite(data.first[row, column]) and not known_starts.get(state):
                raise ValueError(f"trajectory {name!r} has no initial value of {state!r}; give one in its first row.")


if __name__ == "__main__":
    main()
