"""The directory of a run: its files, and how `resume=DIRECTORY` continues it with its stored config."""

import csv
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from ..data.dataset import Dataset
from ..runtime.serialization import Json, is_json, is_list
from ..storage.checkpoint import steps_in
from ..storage.files import PROBE_BYTES, lock, sweep, write_file
from ..training.callback import Record
from .config.build import CONFIG_PARTS, WORDS
from .config.composition import (
    OLD_NAMES,
    ConfigError,
    find_shipped,
    read_config,
    rename_keys,
    shipped_config,
    shipped_option,
)

if TYPE_CHECKING:
    import pandas

# Columns of `metrics.csv`. Steps continue across attempts, which the attempt's name distinguishes.
METRICS_COLUMNS = [*(field.name for field in fields(Record)), "attempt"]
# Keys that can change when a run resumes; any other change would make it a different run.
CHANGEABLE = (
    "training.steps",
    "training.patience",
    "precision",
    "device",
    "verbose",
    "plot",
    "report",
    "logger",
    "compile_cache",
    "extensions",
    "resume_from",
    "sweep",
    "hydra.",
)
# Files in the run's directory. Hydra's own record is not safe: an attempt to start a second run there overwrites it.
RECORD = ".run.json"
CONFIG = "config.yaml"


class RunExists(ValueError):
    """Raised when a run would start or resume in a directory that belongs to another run or process."""


class OtherData(ValueError):
    """Raised when a run would resume with data that differ from those at its start."""


class RunDirectory:
    """The directory of a run: names, writes and reads its files.

    **Arguments:**

    - `path`: the directory, created if it does not exist.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # Whether this process has started a run here; it leaves the files of other runs alone.
        self.ours = False
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.csv"
        self.model = self.path / "model.safetensors"
        self.plots = self.path / "plots"
        self.predictions = self.path / "predictions.csv"
        self.starts = self.path / "starts.json"
        self.summary = self.path / "summary.json"
        self.config = self.path / "config.yaml"
        self.record = self.path / RECORD

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """Locks the directory for a block of code, and removes leftovers of killed processes.

        **Raises:** `RunExists` if another process holds the lock.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(self.path / ".lock"))
            except BlockingIOError:
                raise RunExists(
                    f"another process is using {self.path}; wait for it, stop it, or choose another hydra.run.dir."
                ) from None
            self.sweep()
            yield

    def check_foreign(self) -> None:
        """Checks that a new run would only replace files that node_fit has written here.

        **Raises:** `RunExists` that names the first such file.
        """
        foreign = self.foreign()
        if foreign:
            raise RunExists(
                f"{foreign[0]} is in the way, and no run of node_fit has written it; choose another hydra.run.dir, or "
                "move it."
            )

    def foreign(self) -> list[Path]:
        """Finds files with the names of a run's files in a directory where no run has started."""
        if self.record.is_file():
            return []
        written = (self.metrics, self.model, self.plots, self.predictions, self.config, self.checkpoints, self.starts)
        others = [path for path in written if path.exists() or path.is_symlink()]
        return others + ([self.summary] if self.summary.exists() and not is_summary(self.summary) else [])

    def sweep(self) -> None:
        """Removes half-written files of a killed process."""
        pages = (self.path / name for name in ("report.html", "index.html", ".curves.npz"))
        for path in (self.metrics, self.model, self.predictions, self.starts, self.summary, self.record, *pages):
            sweep(path.parent, path.name)
        for path in self.checkpoints.glob(f"{PROBE_BYTES}*"):
            path.unlink(missing_ok=True)

    def check_unused(self) -> None:
        """Checks that the directory does not hold a run yet.

        **Raises:** `RunExists`, a `ValueError`, with instructions to resume the run.
        """
        if self.holds_run():
            raise RunExists(
                f"{self.path} already holds a run; resume it with resume={self.path} or resume=auto, "
                "or choose another hydra.run.dir."
            )
        self.check_foreign()
        self.ours = True

    def holds_run(self) -> bool:
        """Whether the directory holds a run to resume."""
        # The first attempt can have been fitted without training.
        folders = self.checkpoints, *self.checkpoints.glob("attempt-*")
        return any(map(steps_in, folders)) or self.starts.is_file()

    def write_record(self, command: Mapping[str, object], data: Mapping[str, Dataset]) -> None:
        """Writes a new run identity, the run's command, and the fingerprints of its data."""
        content = {
            "run": secrets.token_hex(16),
            **command,
            "data": {name: fingerprint_data(part) for name, part in data.items()},
        }
        write_file(self.record, (json.dumps(content, indent=2) + "\n").encode())

    def identity(self) -> str | None:
        """Returns the identity stored in the run's checkpoints; `None` for a run of an earlier version."""
        return json.loads(self.record.read_text()).get("run") if self.record.is_file() else None

    def was_fitted_to(self, data: Dataset) -> bool:
        """Whether the record matches these training data; a config can name any file on this machine."""
        try:
            return json.loads(self.record.read_text())["data"]["train"] == fingerprint_data(data)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def check_data(self, data: Mapping[str, Dataset]) -> None:
        """Checks that the training and validation data match the record; test data can change.

        **Raises:** `OtherData` with the difference.
        """
        before = json.loads(self.record.read_text())["data"]
        for name in ("train", "validation"):
            then, now = before.get(name), fingerprint_data(data[name]) if name in data else None
            if then != now:
                raise OtherData(
                    f"the {name} data differ from those that {self.path} started with: then {shorten_list(then)}, now "
                    f"{shorten_list(now)}; restore them, or start a new run."
                )

    def checkpoints_of(self, attempt: int) -> Path:
        """Returns the checkpoint folder of an attempt; the first attempt uses the top folder."""
        return self.checkpoints if attempt == 1 else self.checkpoints / f"attempt-{attempt}"

    def last_step_after(self, attempt: int) -> int | None:
        """Returns the last step that a later attempt has saved; None if no later attempt has."""
        later = [step for folder in self.checkpoints.glob("attempt-*") for step in steps_in(folder)]
        here = steps_in(self.checkpoints_of(attempt))
        return max((step for step in later if step > max(here, default=0)), default=None)

    def begin_metrics(self, until: int) -> list[Json]:
        """Drops the rows of `metrics.csv` after step `until`, and returns the remaining rows."""
        rows = [row for row in self.read_metrics() if row["step"] <= until]
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, METRICS_COLUMNS)
        writer.writeheader()
        writer.writerows({key: csv_text(value) for key, value in row.items()} for row in rows)
        write_file(self.metrics, file.getvalue().encode())
        return rows

    def add_metrics(self, records: Sequence[Record], attempt: str) -> None:
        with open(self.metrics, "a", newline="") as file:
            rows = ({key: csv_text(value) for key, value in asdict(record).items()} for record in records)
            csv.DictWriter(file, METRICS_COLUMNS).writerows(row | {"attempt": attempt} for row in rows)

    def read_metrics(self) -> list[Json]:
        """Reads the rows of `metrics.csv` and parses their numbers; skips a row that a full disk or kill truncated."""
        if not self.metrics.is_file():
            return []
        with open(self.metrics, newline="") as file:
            lines = [line for line in file if line.endswith("\n")]
        rows = csv.DictReader(lines)
        try:
            if not {"step", "seconds"} <= set(rows.fieldnames or ()) <= set(METRICS_COLUMNS):
                raise ValueError
            return [{key: csv_number(key, value) for key, value in row.items()} for row in rows]
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error):
            raise RunExists(
                f"{self.metrics} is not the log of a run, which has the columns {', '.join(METRICS_COLUMNS)}; "
                "move it "
                "elsewhere, or choose another hydra.run.dir."
            ) from None

    def write_summary(self, summary: Mapping[str, object]) -> None:
        write_file(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def write_predictions(self, frame: "pandas.DataFrame") -> None:
        """Writes a row for each time of a split; see `Assessment.frame`."""
        write_file(self.predictions, frame.to_csv(index=False).encode())


def is_summary(path: Path) -> bool:
    """Whether node_fit wrote this summary; a run that fails to start leaves only this file in its directory."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return is_json(content) and {"status", "overrides"} <= set(content)


def fingerprint_data(data: Dataset) -> Json:
    """Returns the identity of a dataset: names, sizes, and a SHA-256 digest of its numbers."""
    total = hashlib.sha256()
    sigma = () if data.sigma is None else (data.sigma,)
    events = () if data.events is None else (data.events.factor, data.events.shift)
    censored = () if data.censored is None else (data.censored,)
    ends = () if data.other_end is None else (data.other_end,)
    for array in (data.ts, data.ys, data.us, data.lengths, data.scored, *sigma, *events, *censored, *ends):
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    total.update("".join(data.events.states if data.events else ()).encode())
    total.update("".join(f"{name}: {noise}" for name, noise in data.noise.items()).encode())
    return {
        "trajectories": list(data.trajectories),
        "rows": int(data.lengths.sum()),
        "states": list(data.states),
        "inputs": list(data.inputs),
        "sha256": total.hexdigest(),
    }


def shorten_list(digest: Json | None) -> str:
    """Formats a fingerprint as short text."""
    if digest is None:
        return "none"
    channels = ", ".join(digest["states"] + digest["inputs"])
    count = len(digest["trajectories"])
    return f"{digest['rows']} rows of {channels} in {count} trajectories (sha256 {digest['sha256'][:12]})"


def csv_text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def csv_number(key: str, value: str) -> str | float | None:
    if key in ("stage", "attempt"):
        return value
    if value == "":
        return None
    return int(value) if key in ("step", "evaluations", "failed_solves", "member") else float(value)


def command_record(hydra: HydraConf) -> Json:
    """Returns the record of a run's command from Hydra's config node; `with_resumed` needs it to resume the run."""
    runtime = plain_runtime(hydra)
    return {
        "overrides": list(map(str, hydra.overrides.task)),
        "config_dirs": [source["path"] for source in runtime["config_sources"] if source["provider"] == "command-line"],
        "cwd": runtime["cwd"],
    }


def plain_runtime(hydra: HydraConf) -> Json:
    """Returns Hydra's `runtime` as plain values. Its paths can contain a literal `${...}`."""
    runtime = OmegaConf.to_container(hydra.runtime, resolve=False)
    assert is_json(runtime)
    return {str(key): value for key, value in runtime.items()}


def with_resumed(arguments: list[str]) -> list[str]:
    """Returns the arguments, or, if `resume=` names a run, those that compose its stored config in its directory.

    Current files of the config groups are ignored: the run continues with its original config.

    **Raises:** `ConfigError` if `resume=` does not name a run, or an argument would make it a different run.
    """
    parsed = get_args_parser().parse_known_args(arguments)[0]
    named = [word.partition("=")[2].strip("'\"") for word in parsed.overrides if word.startswith("resume=")]
    if not named or named[-1] in ("", "null", "auto"):  # The job resolves `auto`, since it knows its directory.
        if named[-1:] != ["auto"] and any(word.startswith("resume_from=") for word in parsed.overrides):
            raise ConfigError("resume_from selects a checkpoint of a run; also name the run with resume=DIRECTORY.")
        return arguments
    if parsed.multirun:
        raise ConfigError("resume continues a single run and can't be combined with --multirun.")
    directory = Path(named[-1]).absolute()
    record = read_record(directory, named[-1])
    changes = [word for word in parsed.overrides if not word.startswith("resume=")]
    conf = find_shipped("conf", CONFIG)
    check_groups(changes, conf)
    # Relative paths in the config refer to the directory where the run was started.
    if Path(record["cwd"]).is_dir():
        os.chdir(record["cwd"])
    changes = [*find_code_overrides(directory, changes), *with_stored_names(directory, changes)]
    # The stored config has no groups. Only the option of `device` can change, so add it.
    changes = [f"+{word}" if word.startswith("device=") else word for word in changes]
    place = [f"resume={quote_override(directory)}", f"hydra.run.dir={quote_override(directory)}"]
    # Disable Hydra's own records and log.
    quiet = ["hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none"]
    sources = ["--config-path", str(directory), "--config-name", CONFIG, "--config-dir", str(conf)]
    return [*sources, *changes, *place, *quiet]


def quote_override(path: Path) -> str:
    """Formats a path as an override value, quoted for Hydra's grammar and escaped for OmegaConf."""
    text = str(path).replace("${", "\\${").replace("'", "\\'")
    return f"'{text}'"


def find_code_overrides(directory: Path, changes: list[str]) -> list[str]:
    """Returns overrides for keys that load code, which must come from the caller.

    **Raises:** `ConfigError` if the run needs extensions that the caller does not name.
    """
    stored = read_config(directory / "config.yaml") if (directory / "config.yaml").is_file() else {}
    changed_keys = {word.lstrip("+~").partition("=")[0] for word in changes}
    if stored.get("extensions") and "extensions" not in changed_keys:
        named = ",".join(map(str, stored["extensions"]))
        raise ConfigError(
            f"the run in {directory} uses packages, whose code would run; if you trust them, resume it with "
            f"'extensions=[{named}]'."
        )
    cache = stored.get("compile_cache", "auto")
    # A cache holds machine code.
    return [] if cache in (False, "auto") or "compile_cache" in changed_keys else ["compile_cache=auto"]


def with_stored_names(directory: Path, changes: list[str]) -> list[str]:
    """Renames the keys of overrides to those of the stored config, which can be from an earlier version."""
    stored = read_config(directory / CONFIG)
    for old, new in OLD_NAMES.items():
        if old in stored and new not in stored:
            changes = [re.sub(rf"^([+~]*){re.escape(new)}(?=[.=])", rf"\g<1>{old}", word) for word in changes]
    return changes


def read_record(directory: Path, name: str) -> Json:
    """Reads the `command_record` of a run.

    **Raises:** `ConfigError` if the record or the stored config is missing.
    """
    try:
        record = json.loads((directory / RECORD).read_text())
        check_words(record)
        if (directory / CONFIG).is_file():
            return {key: record[key] for key in ("overrides", "config_dirs", "cwd")}
        fault = f"it has no {CONFIG}"
    except OSError:
        fault = f"it has no {RECORD}" if directory.exists() else "there is no such directory"
    except (ValueError, KeyError, TypeError, RecursionError):
        fault = f"its {RECORD} can't be read"
    raise ConfigError(f"resume={name} is not a run: {fault}; name a directory such as outputs/DATE/TIME.")


def check_words(record: Json) -> None:
    """Checks that a record contains only overrides and folders, and no options for Hydra itself.

    **Raises:** `ValueError` otherwise.
    """
    words = [*record["overrides"], *record["config_dirs"], record["cwd"]]
    if not all(isinstance(word, str) and word and not word.startswith("-") for word in words):
        raise ValueError("not words")
    if any(re.match(r"[+~]*hydra\b", word) for word in record["overrides"]):
        raise ValueError("keys of Hydra's")


def overrides_of(hydra: HydraConf, record: Path, resume: str | None) -> list[str]:
    """Returns the overrides of a run: those at its start, followed by those of this command."""
    words = list(map(str, hydra.overrides.task))
    if not resume or any(word == "resume=auto" for word in words):
        return words
    before = json.loads(record.read_text())["overrides"]
    return [word for word in before if not word.startswith(("resume=", "resume_from="))] + words


def check_groups(changes: list[str], conf: Path) -> None:
    """Rejects a changed group option. Other keys are compared with the stored config after composition."""
    for word in changes:
        key = word.lstrip("+~").partition("=")[0].partition("@")[0]
        if (conf / key).is_dir() and not key.startswith(CHANGEABLE):
            raise unchangeable(key)


def unchangeable(key: str, before: str = "") -> ConfigError:
    return ConfigError(
        f"resume continues a run as it is, so {key} can't be changed{before}; leave it out, or start a new run. Only "
        f"{', '.join(name.rstrip('.') for name in CHANGEABLE)} may change."
    )


def write_config(config: DictConfig) -> str:
    """Writes a config as YAML that composes to the same values: resolved, with `${` escaped."""

    def escape(node: object) -> object:
        if is_json(node):
            return {key: escape(value) for key, value in node.items()}
        if is_list(node):
            return [escape(value) for value in node]
        return node.replace("${", "\\${") if isinstance(node, str) else node

    return OmegaConf.to_yaml(escape(OmegaConf.to_container(config, resolve=True)))


def with_new_keys(config: DictConfig) -> DictConfig:
    """Updates a stored config with current key names and the shipped values of newer keys."""
    shipped_values = shipped_config()
    with open_dict(config):
        rename_keys(config)
        for key, value in shipped_values.items():
            both = OmegaConf.is_dict(config.get(key)) and OmegaConf.is_dict(value)
            if key not in config:
                config[key] = value
            elif both and config[key].get("_target_") == value.get("_target_"):
                config[key] = OmegaConf.merge(value, config[key])
        for group in CONFIG_PARTS:
            if group not in config:
                config[group] = shipped_option(group)
    return config


def check_unchanged(before: DictConfig | ListConfig, now: DictConfig) -> None:
    """Checks that the command only changes keys of the stored config that are allowed to change.

    **Raises:** `ConfigError` that names the first key that differs.
    """
    for key, then, _ in differences(before, now):
        raise unchangeable(key, "" if then is None else f" from {then}")


def check_same_config(before: DictConfig | ListConfig, now: DictConfig, place: Path) -> None:
    """Checks that a run resumes with its original config, except for keys that are allowed to change.

    **Arguments:**

    - `before`, `now`: the two configs.
    - `place`: the run's directory, for the error message.

    **Raises:** `ConfigError` that names the first key that differs.
    """
    for key, then, this in differences(before, now):
        raise ConfigError(
            f"the run in {place} was started with {key}={then}, but now it is {this}; restore the old value, or choose "
            "another directory."
        )


def differences(before: DictConfig | ListConfig, now: DictConfig) -> list[tuple[str, object, object]]:
    """Returns the fixed keys in which two configs differ, with both values."""
    # Compare in the form that loading from YAML gives.
    then, this = (as_today(config) for config in (before, OmegaConf.create(write_config(now))))
    keys = [*then, *(key for key in this if key not in then)]
    return [
        (key, then.get(key), this.get(key))
        for key in keys
        if then.get(key) != this.get(key) and not key.startswith((*CHANGEABLE, "resume"))
    ]


def as_today(config: DictConfig | ListConfig) -> Json:
    """Flattens a config, with current key names and with words in place of earlier versions' nulls."""
    nested = OmegaConf.to_container(config, resolve=True)
    if is_json(nested):
        rename_keys(nested)
    flat = flatten(nested)
    words = {f"{group}.{key}": word for group, keys in WORDS.items() for key, word in keys.items()}
    return {key: words.get(key) if value is None else value for key, value in flat.items()}


def flatten(node: object, prefix: str = "") -> Json:
    """Flattens nested dicts into one dict with dotted keys."""
    if not is_json(node) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in flatten(child, f"{prefix}{name}.").items()}
