"""The command `python -m node_fit.report`, also `node-fit open`: rewrites pages and shows them."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import sys
import textwrap
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from ..runtime.serialization import __version__
from ..storage.files import explain_disk
from .pages import INDEX_NAME as INDEX
from .pages import PAGE_NAME, is_run, make_index, make_member_index, make_run_page

# Exceptions that reading a modified file can raise, besides those with a message.
DAMAGE = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, StopIteration)


def main(arguments: list[str] | None = None, command: str = "python -m node_fit.report", *, show: bool = False) -> None:
    """Parses the command line, writes the page and prints its path.

    **Arguments:**

    - `arguments`: the command-line arguments; those of this process by default.
    - `command`: the command's name.
    - `show`: whether to open the page in a browser by default.
    """
    parser = argparse.ArgumentParser(
        prog=command,
        description="Make the page of a run, a multirun or a search again, from its files.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a directory, such as outputs/DATE/TIME or multirun/DATE/TIME")
    parser.add_argument("--show", action=argparse.BooleanOptionalAction, default=show, help="open it in a browser")
    parser.add_argument(
        "--extensions",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="packages whose classes the model may use; importing a package runs its code",
    )
    options = parser.parse_args(arguments)
    try:
        path = make(options.run.absolute(), options.extensions)
    except OSError as error:
        print(f"error: {explain_disk(error, options.run, 'folder, to which you copy the run')}", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except DAMAGE as error:
        shown = textwrap.shorten(repr(error), 200)
        print(f"error: a file in {options.run} is none that node_fit writes ({shown}).", file=sys.stderr)
        sys.exit(1)
    print(f"report: {path}")
    if options.show and not webbrowser.open(path.as_uri()):
        print("no browser was found; open the file by hand.", file=sys.stderr)


def make(directory: Path, extensions: Sequence[str] = ()) -> Path:
    """Writes the pages of a directory, and returns the path of the main page.

    **Arguments:** `directory`: of one or several runs; `extensions`: packages whose classes their models can use.

    **Raises:** `FileNotFoundError` if it contains neither one run nor several.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no directory {directory}; name one such as outputs/DATE/TIME.")
    if (directory / "config.yaml").is_file():
        make_member_index(directory)
        return make_run_page(directory, extensions=extensions)
    runs = [path for path in directory.iterdir() if is_run(path)]
    if not runs:
        raise FileNotFoundError(
            f"{directory} holds no run: it has no config.yaml, nor has a folder in it; name a directory such as "
            "outputs/DATE/TIME."
        )
    for run in runs:
        if not (run / PAGE_NAME).is_file():
            make_run_page(run, extensions=extensions)
    make_index(directory)
    return directory / INDEX


if __name__ == "__main__":
    main()
