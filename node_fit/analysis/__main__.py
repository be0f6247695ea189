"""The command `python -m node_fit.analysis`: equilibria, modes and responses of the model of a run."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..app.config.composition import read_config
from ..app.run_directory import RunDirectory
from ..model.neural_ode import NeuralODE
from ..plots.curves import save_figure, use_style
from ..plots.responses import bode_figure, step_figure
from ..runtime.compilation import keep_programs
from ..runtime.serialization import __version__
from ..storage.files import explain_disk, write_output
from ..storage.model_file import load
from .equilibria import REACH, find_equilibria, find_hopf_points
from .linearization import Linearization, linearize_near

MODEL_FILE = ".safetensors"
DECIMAL_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def main() -> None:
    """Parses the command line, prints the equilibria of the model, and writes responses."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.analysis",
        description="Equilibria of a fitted model, with eigenvalues, time constants, natural frequencies and damping; "
        "responses to steps and to sines near one of them, or near another point.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a run directory, such as outputs/DATE/TIME, or a model file")
    parser.add_argument("--at", nargs="+", default=[], metavar="STATE=VALUE", help="a point, in place of equilibria")
    parser.add_argument("--inputs", nargs="+", default=[], metavar="INPUT=VALUE", help="values of the inputs")
    parser.add_argument(
        "--within", nargs="+", default=[], metavar="STATE=LOW:HIGH", help="where to look for equilibria"
    )
    parser.add_argument("--hopf", metavar="NAME=LOW:HIGH", help="an input or a constant to vary until it oscillates")
    parser.add_argument("--out", type=Path, help="a folder for bode.csv, bode.png, step_INPUT.csv and step_INPUT.png")
    parser.add_argument("--overwrite", action="store_true", help="replace files in the folder")
    parser.add_argument(
        "--extensions", nargs="+", default=[], metavar="PACKAGE", help="packages of the model's classes"
    )
    options = parser.parse_args()
    try:
        analyse(options)
    except OSError as error:
        print(f"error: {explain_disk(error, options.out or '.', '--out')}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def analyse(given: argparse.Namespace) -> None:
    """Prints the points of a model, and writes the responses at the first one.

    A run can come from an untrusted source: nothing that it names is imported or called.

    **Raises:** `ValueError` or `OSError` with a sentence as its message.
    """
    model = load_typical(given.run, given.extensions)
    states, inputs = parse_values("--at", given.at), parse_values("--inputs", given.inputs)
    within = parse_ranges("--within", given.within)
    if states:
        points = [linearize_near(model, states, inputs)]
    else:
        points = find_equilibria(model, inputs, within)
        where = ", ".join(f"{name} from {low:g} to {high:g}" for name, (low, high) in within.items())
        region = where or f"{REACH:g} standard deviations of the training data around their mean"
        print(f"equilibria within {region}: {len(points) or 'none found'}")
    for point in points:
        print(point)
    if given.hopf:
        ((name, ends),) = parse_ranges("--hopf", [given.hopf]).items()
        crossings = find_hopf_points(model, name, ends, inputs, within)
        for crossing in crossings:
            print(crossing)
        if not crossings:
            print(f"no Hopf point for {name} from {ends[0]:g} to {ends[1]:g}")
    if given.out is not None:
        if not points:
            raise ValueError("no equilibrium was found, so there is no response; name a point, --at STATE=VALUE.")
        for path in write_responses(points[0], given.out, overwrite=given.overwrite):
            print(f"written: {path}")


def load_typical(run: Path, extensions: Sequence[str]) -> NeuralODE:
    """Loads the model of a run or of a file; for an ensemble, the one it is drawn around.

    **Raises:** `ValueError` or `OSError` with a sentence as its message.
    """
    if run.suffix == MODEL_FILE:
        return load(run, extensions=extensions).typical
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise FileNotFoundError(f"{run} is no run and no {MODEL_FILE} file; name one such as outputs/DATE/TIME.")
    keep_programs(False if read_config(config_file).get("compile_cache") is False else "auto")
    return load(RunDirectory(run).model, extensions=extensions).typical


def parse_values(option: str, words: Sequence[str]) -> dict[str, float]:
    """Parses numbers by name, from words such as `x=1.5`.

    **Raises:** `ValueError` for any other word.
    """
    values: dict[str, float] = {}
    for word in words:
        match = re.fullmatch(rf"(.+)=({DECIMAL_NUMBER})", word)
        if match is None:
            raise ValueError(f"{option} {word} can't be read; write NAME=NUMBER, such as x=1.5.")
        values[match[1]] = float(match[2])
    return values


def parse_ranges(option: str, words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parses ranges by name, from words such as `x=-1:2`.

    **Raises:** `ValueError` for any other word.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for word in words:
        match = re.fullmatch(rf"(.+)=({DECIMAL_NUMBER}):({DECIMAL_NUMBER})", word)
        if match is None:
            raise ValueError(f"{option} {word} can't be read; write NAME=LOW:HIGH, such as x=-1:2.")
        ranges[match[1]] = float(match[2]), float(match[3])
    return ranges


def write_responses(point: Linearization, folder: Path, *, overwrite: bool) -> list[Path]:
    """Writes the responses at a point as tables and pictures, and returns the files.

    **Raises:** `ValueError` if the model has no inputs, or a file exists.
    """
    response = point.frequency_response()
    steps = [point.step_response(name) for name in point.inputs]
    stems = ["bode", *(f"step_{re.sub(r'[^A-Za-z0-9_.-]', '_', step.input)}" for step in steps)]
    paths = [folder / f"{stem}.{ending}" for stem in stems for ending in ("csv", "png")]
    taken = next((path for path in paths if path.exists()), None)
    if taken is not None and not overwrite:
        raise ValueError(f"{taken} exists; choose another folder, or add --overwrite to replace it.")
    folder.mkdir(parents=True, exist_ok=True)
    count = len(response.frequencies)
    names = [f"{channel} / {source}" for channel in response.channels for source in response.inputs]
    for frame, stem in zip([response.to_frame(), *(step.to_frame() for step in steps)], stems, strict=True):
        write_output(folder / f"{stem}.csv", frame.to_csv(index=False).encode())
    with use_style():
        magnitude, phase = response.magnitude.reshape(count, -1), response.phase.reshape(count, -1)
        save_figure(bode_figure(response.frequencies, magnitude, phase, names, point.unit), folder / "bode.png")
        for step, stem in zip(steps, stems[1:], strict=True):
            title = f"step of {step.input} by 1"
            save_figure(step_figure(step.ts, step.ys, step.channels, title, point.unit), folder / f"{stem}.png")
    return paths


if __name__ == "__main__":
    main()
