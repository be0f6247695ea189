"""The site's gallery: runs the commands of its pages, and writes their pictures and figures.

python scripts/docs/gallery.py                        # all subjects whose data are there; a quarter of an hour
python scripts/docs/gallery.py lynx_hare doses        # some of them
python scripts/docs/gallery.py tanks --data datasets  # with data that do not ship; the page says where they are

Each page `docs/gallery_NAME.md` holds its commands, with `RUN` for the folder of a run. They run as they stand there,
in a folder with `data/`, the tables that `gallery_data.py` makes, and links to files below `--data`. The script draws
`docs/gallery_NAME.png` and writes what was measured between two comments of the page. `--runs DIR` keeps the runs, and
uses those that are there already.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import gallery_data
import gallery_equations
import gallery_exports
import gallery_records
from gallery_runs import Run, Subject
from PIL import Image

from node_fit.plots.curves import new_figure, save_figure, use_style

ROOT = Path(__file__).parents[2]
SUBJECTS = gallery_equations.SUBJECTS | gallery_records.SUBJECTS | gallery_exports.SUBJECTS
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- measured.*? -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the data that do not ship")
    parser.add_argument("--runs", type=Path, help="folder in which runs are kept")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    with TemporaryDirectory() as temporary:
        for name in given.names or SUBJECTS:
            subject, folder = SUBJECTS[name], (given.runs or Path(temporary)).absolute() / name
            absent = [path for path in subject.needs if not (given.data / path).is_file()]
            if absent:
                print(f"{name}: left out, since {given.data / absent[0]} is absent; docs/gallery_{name}.md says whence")
                continue
            supply(folder, subject, given.data.absolute())
            page = DOCS / f"gallery_{name}.md"
            text = page.read_text()
            runs = [run(words, folder, number) for number, words in enumerate(commands(text, "node_fit"))]
            for words in commands(text, "node_fit.discover"):
                words = [str(runs[-1].folder) if word == "RUN" else word for word in words]
                runs.append(run(words, folder, len(runs), "node_fit.discover"))
            for words in commands(text, "node_fit.export"):
                write_export(words, folder, runs[-1])
            publish(name, subject, runs)


def commands(page: str, module: str) -> list[list[str]]:
    """The words of the commands in the shell blocks of a page that run a module, without `python -m MODULE`."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("\\\n", " ")
    lines = [line.partition(f"python -m {module} ") for line in blocks.splitlines()]
    return [shlex.split(words, comments=True) for before, found, words in lines if found and not before]


def supply(folder: Path, subject: Subject, data: Path) -> None:
    """Puts what the commands read into their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {"data": ROOT / "data", **{Path(path).name: data / path for path in subject.needs}}
    for name, source in sources.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(source)
    for name in subject.makes:
        if not (folder / name).exists():
            gallery_data.make(name, folder)


def run(words: list[str], folder: Path, number: int, module: str = "node_fit") -> Run:
    """Runs a command, unless its run is there."""
    place, kind = folder / f"run{number}", "sweep" if "-m" in words else "run"
    if not (place / "seconds.json").is_file():
        began = time.perf_counter()
        command = [sys.executable, "-m", module, *words, f"hydra.{kind}.dir={place}"]
        subprocess.run(command, cwd=folder, check=True)
        (place / "seconds.json").write_text(json.dumps(time.perf_counter() - began))
    summary = place / "summary.json"
    return Run(
        place,
        json.loads(summary.read_text()) if summary.is_file() else {},
        json.loads((place / "seconds.json").read_text()),
    )


def write_export(words: list[str], folder: Path, run: Run) -> None:
    """Runs the command of an export, in which `RUN` is the folder of a run, unless its folder is there."""
    if not (folder / words[words.index("--out") + 1]).is_dir():
        words = [str(run.folder) if word == "RUN" else word for word in words]
        subprocess.run([sys.executable, "-m", "node_fit.export", *words], cwd=folder, check=True)


def publish(name: str, subject: Subject, runs: list[Run]) -> None:
    """Draws the picture, and writes the figures into the page."""
    with use_style():
        figure = new_figure(7.2, 3.0)
        subject.draw(figure, runs)
        picture = save_figure(figure, DOCS / f"gallery_{name}.png")
    Image.open(picture).quantize(64).save(picture, optimize=True)  # a third of the bytes
    lines = ["| quantity | measured | compared with | source |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(cells)} |" for cells in subject.rows(runs)]
    seconds = " and ".join(f"{each.seconds:.0f}" for each in runs)
    said = [each.summary["diagnosis"]["sentence"] for each in runs if each.summary]
    lines += ["", "```text", *said, "```"] if said else []
    lines += ["", f"The command took {seconds} s on one core, with imports and compilation."]
    page = DOCS / f"gallery_{name}.md"
    text, replaced = BLOCK.subn(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], page.read_text())
    if replaced != 1:
        raise ValueError(
            f"{page} needs one place for figures: a line `<!-- measured ... -->` and a line `<!-- end -->`."
        )
    page.write_text(text)
    print(f"{name}: {picture.stat().st_size / 1000:.0f} kB", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
