"""What a page needs of a run's directory besides its predictions: texts, scores and losses."""

import csv
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..storage.archive import BadFile, peek

# Of a config that is read [bytes].
LARGEST = 4 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none, or if it can't be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run, with today's statuses; empty if there is none, or if it can't be read."""
    return with_statuses(read_json(folder / "summary.json"))


def with_statuses(node: Any) -> Any:
    """A summary in which `stopped_early`, of version 0.2, is `converged` or `stopped`."""
    if isinstance(node, list):
        return [with_statuses(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {key: with_statuses(each) for key, each in node.items()}
    if node.get("status") == "stopped_early":
        reason = str(node.get("reason", ""))
        converged = reason.startswith(("converged: ", "the training loss has stalled"))
        node["status"] = "converged" if converged else "stopped"
        if "reason" in node:
            node["reason"] = reason.removeprefix("converged: ")
    return node


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """A config as keys and values, and as text; empty if it can't be read, or is none that node_fit writes."""
    try:
        if path.stat().st_size > LARGEST:
            return {}, ""
        text = path.read_text()
        # A few nested aliases stand for gigabytes, and node_fit writes none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            return {}, ""
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}, ""
    return (content if isinstance(content, dict) else {}), text


def read_units(config: Mapping[str, Any]) -> dict[str, str]:
    """The units of columns in a config."""
    data = config.get("data")
    units = data.get("units") if isinstance(data, dict) else None
    return {str(name): str(unit) for name, unit in units.items()} if isinstance(units, dict) else {}


def read_losses(path: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.csv`; numbers are finite or `None`."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(line for line in file if line.endswith("\n")))
    except OSError:
        return []
    return [{key: value if key == "stage" else number(value) for key, value in row.items()} for row in rows]


def number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def read_versions(model: Path) -> dict[str, str]:
    """Versions of the packages that wrote a model file."""
    try:
        content = peek(model)
    except (BadFile, OSError):
        return {}
    return {"node_fit": str(content.get("node_fit", "?")), **content.get("versions", {})}


def command_of(record: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The command that repeats a run."""
    words = [word for path in record.get("config_dirs", []) for word in ("--config-dir", path)]
    given = record.get("overrides", summary["overrides"] or [])
    words += [word for word in given if not word.startswith(("resume=", "resume_from="))]
    lines = [f"cd {shlex.quote(record['cwd'])}"] if record.get("cwd") else []
    return "\n".join([*lines, f"python -m node_fit {shlex.join(words)}".rstrip()])


def stages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses by stage, and in it by member.

    **Returns:** for each stage its `name` and `members`: dicts with lists `step`, `seconds`, `train`, `validation`.
    """
    found: list[dict[str, Any]] = []
    for row in rows:
        if not found or found[-1]["name"] != row.get("stage"):
            found.append({"name": row.get("stage"), "members": {}})
        empty: dict[str, list] = {"step": [], "seconds": [], "train": [], "validation": []}
        member = found[-1]["members"].setdefault(int(row.get("member") or 0), empty)
        member["step"].append(row.get("step"))
        member["seconds"].append(row.get("seconds"))
        member["train"].append(row.get("train_loss"))
        member["validation"].append(row.get("validation_loss"))
    return [{"name": each["name"], "members": list(each["members"].values())} for each in found]
