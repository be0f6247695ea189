"""The command `python -m node_fit.export`: exports the model of a run."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..app.config.build import build, errors_of_data
from ..app.config.composition import read_config
from ..app.run_directory import RunDirectory
from ..data.dataset import Dataset, Split
from ..data.table_source import Table
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..predict import holds_target, refuse_experiments, stored_level, stored_table, with_own_events
from ..report.run_files import read_json
from ..runtime.compilation import keep_programs
from ..runtime.serialization import Json, __version__, is_json
from ..storage.files import explain_disk
from ..storage.model_file import load
from .export import TARGETS, export
from .functions import PRECISIONS

MODEL_SUFFIX = ".safetensors"
SPLIT = "node_fit.Split"


def main() -> None:
    """Parses the command line and writes the export."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.export",
        description="Write a fitted model for another place, and check that it predicts there what it predicts here.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a run directory, such as outputs/DATE/TIME, or a model file")
    parser.add_argument("--to", required=True, choices=list(TARGETS), help="the target")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--data", nargs="+", help="files to check it on, in place of the training data")
    parser.add_argument("--events", metavar="FILE", help="doses, resets and switches of these files")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="double", help="in which it computes")
    parser.add_argument("--trajectory", metavar="NAME", help="whose model, where each trajectory has its own constants")
    parser.add_argument("--tolerance", type=float, help="of the check, as a share of the range of each channel")
    parser.add_argument("--overwrite", action="store_true", help="replace files in the folder")
    parser.add_argument(
        "--extensions", nargs="+", default=[], metavar="PACKAGE", help="packages of the model's classes"
    )
    options = parser.parse_args()
    try:
        model, data, level = model_and_data(options.run, options.data, options.events, options.extensions)
        done = export(
            model,
            options.to,
            options.out,
            data=data,
            precision=options.precision,
            tolerance=options.tolerance,
            level=level,
            confidence=stored_confidence(options.run),
            trajectory=options.trajectory,
            overwrite=options.overwrite,
        )
    except OSError as error:
        print(f"error: {explain_disk(error, options.out, '--out')}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, MemoryError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(done)


def model_and_data(
    run: Path, files: Sequence[str] | None, events: str | None, extensions: Sequence[str]
) -> tuple[NeuralODE | Ensemble, Dataset | None, float]:
    """Returns the model of a run, the records to check it on, and the level of its bands.

    A run can come from an untrusted source: nothing that it names is imported or called.

    **Raises:** `ValueError` or `OSError` with a sentence as its message.
    """
    if run.suffix == MODEL_SUFFIX:
        return load(run, extensions=extensions), None, 0.9
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise FileNotFoundError(
            f"{run} is neither a run directory nor a model file; name a directory such as outputs/DATE/TIME, or a "
            f"file NAME{MODEL_SUFFIX}."
        )
    config = read_config(config_file)
    refuse_experiments(run)
    keep_programs(False if config.get("compile_cache") is False else "auto")
    model = load(RunDirectory(run).model, extensions=extensions)
    table = stored_table(config, config_file)
    with errors_of_data():
        if files is None:
            return model, training_data(run, config, table), stored_level(config)
        table = with_own_events(table, events)
        unit = dict(model.typical.units).get(model.typical.system.time)
        return model, table.read(list(files) if len(files) > 1 else files[0], unit), stored_level(config)


def stored_confidence(run: Path) -> Json:
    """Returns the confidence intervals of a run's constants from its summary; empty if it has none."""
    confidence = read_json(run / "summary.json").get("confidence")
    return confidence if is_json(confidence) else {}


def training_data(run: Path, config: Json, table: Table) -> Dataset:
    """Returns the rows that a run was fitted to.

    An export contains some of these rows, and an untrusted config can name any file of this machine.

    **Raises:** `ValueError` unless they match the run's record.
    """
    data = config.get("data")
    split = data.get("split") if is_json(data) else None
    is_split = is_json(split) and split.get("_target_") == SPLIT and not any(map(holds_target, split.values()))
    configured = build(split, "data.split") if is_split else Split(validation=0.0, test=0.0)
    # Fits of equations alone used all rows if the split left its shares open.
    trains = (replace(table, split=variant).load().train for variant in (configured, configured.with_shares(0.0)))
    train = next(filter(RunDirectory(run).was_fitted_to, trains), None)
    if train is None:
        raise ValueError(
            f"what data.path of {run / 'config.yaml'} names is not what the model was fitted to, by the run's record; "
            "name the files to check the export on with --data FILE."
        )
    return train


if __name__ == "__main__":
    main()
