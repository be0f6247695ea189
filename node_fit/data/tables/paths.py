import glob
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from ...runtime.arguments import check_argument


def find_files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that a path, a list of paths or a glob names; those of a glob in alphabetical order.

    **Raises:** `FileNotFoundError` with the nearest existing file; `ValueError` for a folder or a file named twice.
    """
    check_argument("path", path, str | Path | Sequence[str | Path], "a file, a list of files or a glob")
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    files = [file for each in paths for file in expand(Path(each).expanduser())]
    if not files:
        raise ValueError("path is an empty list; name at least one file.")
    twice = [file for file in files if files.count(file) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice in path; remove one.")
    return files


def expand(path: Path) -> list[Path]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file; name a file in it, or use a glob: {path / '*.csv'}.")
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir())
        if found:
            return found
        raise FileNotFoundError(f"no file matches {path}; check the pattern and the working directory, {Path.cwd()}.")
    raise FileNotFoundError(missing(path))


def missing(path: Path) -> str:
    """Error message for a file that does not exist."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does the folder {path.parent}; check the path."
    near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1)
    hint = (
        f"did you mean {path.parent / near[0]}?" if near else f"there is no similar name in {path.parent.absolute()}."
    )
    return f"{path} does not exist; {hint}"


def names_of(files: Sequence[Path]) -> list[str]:
    """A name for each file: its stem, or the whole path for every file if two stems are the same."""
    short = [file.name.removesuffix(".gz").rsplit(".", 1)[0] or file.name for file in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]
