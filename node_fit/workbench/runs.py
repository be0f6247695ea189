"""The runs in the working directory, and the current fit: a command in a separate process."""

import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ..report.pages import PAGE_NAME
from ..report.run_files import command_of, read_config_text, read_json, read_losses, read_summary
from ..runtime.serialization import Json, is_json
from ..storage.checkpoint import steps_in
from ..storage.files import lock, write_file

OUTPUTS = Path("outputs")
RUN_ID = re.compile(r"(\d{4}-\d{2}-\d{2})_(\d{2}-\d{2}-\d{2}(?:-\d{1,6})?)")
# Files of the page in a run's directory: the fit's output, and the process that runs the fit.
PRINTED, BEGUN_BY = ".printed.txt", ".begun.json"
# Maximum output [bytes], losses [rows] and runs sent to the page.
MAX_PRINTED, MAX_LOSSES, MAX_RUNS = 40_000, 2_000, 50
# Files of a run on the page, by their names there.
FILES = {
    "model": "model.safetensors",
    "predictions": "predictions.csv",
    "summary": "summary.json",
    "config": "config.yaml",
    "log": "metrics.csv",
}
# Exit codes of a fit after Stop or Ctrl-C, with and without its signal handlers installed.
STOPPED = (128 + signal.SIGINT, -signal.SIGINT)
# Time for a fit to save its state [s].
PATIENCE_AT_STOP = 10.0


class NoRun(ValueError):
    """Raised for an unknown run id."""


class Busy(ValueError):
    """Raised if a fit is already running, or none is."""


def find_run(key: str) -> Path:
    """Returns the directory of a run.

    **Raises:** `NoRun` if the id is unknown.
    """
    parts = RUN_ID.fullmatch(key)
    path = OUTPUTS / parts[1] / parts[2] if parts else None
    if path is None or not path.is_dir() or path.is_symlink():
        raise NoRun("there is no such run here.")
    return path


def id_of_run(path: Path) -> str:
    return f"{path.parent.name}_{path.name}"


def list_runs() -> list[Path]:
    """Returns the newest runs in the working directory."""
    paths = [path for path in OUTPUTS.glob("*/*") if RUN_ID.fullmatch(id_of_run(path)) and path.is_dir()]
    return sorted(paths, reverse=True)[:MAX_RUNS]


class Fits:
    """Starts, stops and resumes fits, one at a time. A fit survives a closed page and a killed server."""

    def __init__(self):
        self.guard = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.path: Path | None = None
        self.watcher: threading.Thread | None = None

    def begin(self, words: Sequence[str]) -> Path:
        """Starts a fit in a new run directory, and returns the directory.

        **Raises:** `Busy` if a fit is running.
        """
        now = datetime.datetime.now()
        path = OUTPUTS / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S-%f}"
        self.start([*words, f"hydra.run.dir={path}"], path)
        return path

    def resume(self, path: Path) -> None:
        """Resumes a run in its own directory.

        **Raises:** `Busy` if a fit is running.
        """
        self.start([f"resume={path}"], path)

    def start(self, words: Sequence[str], path: Path) -> None:
        with self.guard:
            if (running := self.running()) is not None:
                raise Busy(f"the fit {id_of_run(running)} is running; stop it first, or wait for it.")
            path.mkdir(parents=True, exist_ok=True)
            with open(path / PRINTED, "ab") as printed:
                self.process = spawn_fit(words, printed)
            self.path = path
            begun: Json = {"process": self.process.pid, "words": list(words), "ended": None}
            write_begun(path, begun)
            # By then, the working directory can differ, or the run's directory be deleted.
            self.watcher = threading.Thread(target=note_end, args=(self.process, path.absolute(), begun), daemon=True)
            self.watcher.start()

    def running(self) -> Path | None:
        """Returns the run whose fit is running, including fits started before this server."""
        if self.process is not None and self.process.poll() is None:
            return self.path
        return next((path for path in list_runs()[:5] if is_orphan(path)), None)

    def is_running(self, path: Path) -> bool:
        if self.path == path and self.process is not None and self.process.poll() is None:
            return True
        return is_orphan(path)

    def exit_code(self, path: Path) -> int | None:
        """Returns the exit code of this server's fit, slightly before its directory has it; None for other runs."""
        return self.process.poll() if self.process is not None and self.path == path else None

    def stop(self, path: Path) -> None:
        """Sends SIGINT to a fit, which saves its state and ends; a second call ends it at once.

        **Raises:** `Busy` if this fit is not running.
        """
        if not self.is_running(path):
            raise Busy("this fit is not running.")
        if self.path == path and self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        else:
            os.kill(int(read_json(path / BEGUN_BY)["process"]), signal.SIGINT)

    def close(self) -> None:
        """Ends this server's fit, and waits until its state and exit code are saved."""
        if self.process is None or self.watcher is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE_AT_STOP)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.watcher.join(PATIENCE_AT_STOP)


def spawn_fit(words: Sequence[str], printed: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Starts the command of a fit in a new session, which Ctrl-C in the server's terminal does not reach."""
    return subprocess.Popen(
        [sys.executable, "-m", "node_fit", *words],
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def write_begun(path: Path, begun: Json) -> None:
    write_file(path / BEGUN_BY, (json.dumps(begun) + "\n").encode())


def note_end(process: "subprocess.Popen[bytes]", path: Path, begun: Json) -> None:
    """Waits for a fit, and records its exit code."""
    ended = process.wait()
    if path.is_dir():
        write_begun(path, {**begun, "ended": ended})


def is_orphan(path: Path) -> bool:
    """Whether a fit started by a page is still running in another process, as after the page's server was killed.

    Tries the lock only for such fits, since the run itself could not take it at that moment.
    """
    begun = read_json(path / BEGUN_BY)
    if not begun or begun.get("ended") is not None or not (path / ".lock").is_file():
        return False
    try:
        with lock(path / ".lock"):
            return False
    except BlockingIOError:
        return True


def describe_status(path: Path, fits: Fits) -> tuple[str, str]:
    """Returns the status of a run, and a sentence about it."""
    if fits.is_running(path):
        return "running", "the fit is running."
    summary = read_summary(path)
    begun = read_json(path / BEGUN_BY)
    ended = fits.exit_code(path) if begun.get("ended") is None else begun["ended"]
    if status := summary.get("status"):
        diagnosis = summary.get("diagnosis")
        sentence = diagnosis.get("sentence") if is_json(diagnosis) else None
        return str(status), str(sentence or summary.get("reason") or "")
    can = " Its state is saved: go on with Resume." if can_resume(path) else ""
    if ended in STOPPED:  # It did not write a summary in time.
        return "interrupted", f"the fit was stopped.{can}"
    if isinstance(ended, int) and ended < 0:
        return "killed", f"the process of the fit was ended by {signal.Signals(-ended).name}.{can}"
    if ended is None and begun:
        return "killed", f"the process of the fit has ended without a word.{can}"
    return "unfinished", f"the run has no summary.{can}"


def can_resume(path: Path) -> bool:
    """Whether the run has a saved state to resume from."""
    folder = path / "checkpoints"
    return (path / "config.yaml").is_file() and any(map(steps_in, (folder, *folder.glob("attempt-*"))))


def state_of_run(path: Path, fits: Fits, since: int = 0) -> Json:
    """Reads the page's data about a run from its directory.

    **Arguments:** `since`: number of loss rows that the page already has.
    """
    status, sentence = describe_status(path, fits)
    losses = read_losses(path / "metrics.csv")
    since = since if 0 <= since <= len(losses) else 0
    step = max((len(losses) - since) // MAX_LOSSES, 1)
    summary = read_summary(path)
    return {
        "id": id_of_run(path),
        "status": status,
        "sentence": sentence,
        "kind": (summary.get("diagnosis") or {}).get("kind"),
        "printed": read_printed(path),
        "rows": len(losses),
        "losses": [
            [row.get("step"), row.get("train_loss"), row.get("validation_loss"), row.get("attempt") or row.get("stage")]
            for row in losses[since::step]
        ],
        "pictures": [
            {"name": picture.name, "version": picture.stat().st_mtime_ns} for picture in pictures_of(path).values()
        ],
        "files": [word for word, name in FILES.items() if (path / name).is_file()],
        "has_report": (path / PAGE_NAME).is_file() and status != "running",
        "can_resume": status != "running" and can_resume(path),
        "command": command_of(read_json(path / ".run.json"), summary) if (path / ".run.json").is_file() else "",
        "equations": summary.get("equations") or {},
        "constants": summary.get("constants") or {},
        "confidence": summary.get("confidence") or {},
        "metrics": summary.get("metrics") or {},
        "baselines": summary.get("baselines") or {},
    }


def describe_briefly(path: Path, fits: Fits) -> Json:
    """Returns an entry of the list of runs."""
    config = read_config_text(path / "config.yaml")[0].get("data")
    source = config.get("path") if is_json(config) else None
    return {
        "id": id_of_run(path),
        "status": describe_status(path, fits)[0],
        "data": Path(source).name if isinstance(source, str) else "",
    }


def pictures_of(path: Path) -> dict[str, Path]:
    """Returns the plots of a run by name, with the plot of the fit first."""
    pictures = {picture.name: picture for picture in sorted(path.glob("plots/*.png")) if not picture.is_symlink()}
    return dict(sorted(pictures.items(), key=lambda item: (item[0] != "fit.png", item[0])))


def read_printed(path: Path) -> str:
    """Returns the end of the command's output."""
    try:
        with open(path / PRINTED, "rb") as file:
            file.seek(max(os.path.getsize(path / PRINTED) - MAX_PRINTED, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def command_of_words(words: Sequence[str]) -> str:
    """Returns the command that runs a fit."""
    return f"python -m node_fit {shlex.join(words)}"
