"""The config.yaml of a run as plain values: it may come from a stranger, so nothing in it is resolved or called."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf import errors as omegaconf

from ...data.table_source import Table
from .configuration import build
from .targets import ConfigError

# Covariates by trajectory are the longest part of a config [bytes].
LARGEST = 4 << 20
TABLE = "node_fit.Table"


def read_config(path: Path) -> dict[str, Any]:
    """Reads a stored config.

    **Raises:** `FileNotFoundError`, or `ConfigError` that says why it can't be read.
    """
    if path.stat().st_size > LARGEST:
        raise ConfigError(f"{path} is larger than {LARGEST >> 20} MB, so it is not the config of a run.")
    try:
        text = path.read_text(encoding="utf-8")
        # A few nested aliases stand for gigabytes, and node_fit writes none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ConfigError(f"{path} has YAML aliases, which the config of a run never has; restore the file.")
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, ValueError, RecursionError, omegaconf.OmegaConfBaseException) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} can't be read as YAML ({str(error).splitlines()[0]}); restore the file.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not the config of a run: it holds no keys.")
    return content


def stored_table(config: dict[str, Any], path: Path) -> Table:
    """The description of a run's columns, without its split; for new data with the same columns.

    **Arguments:**

    - `config`: as read.
    - `path`: its file, for errors.

    **Raises:** `ConfigError` if it does not describe the columns of a table.
    """
    data = config.get("data")
    if not isinstance(data, dict):
        raise ConfigError(f"{path} does not describe the data; name the directory of a run.")
    target = data.get("_target_", TABLE)
    if target != TABLE:
        raise ConfigError(
            f"data._target_ in {path} is {target!r}, and only {TABLE} is read from a run; read the data yourself, and "
            "predict with node_fit.load(...).predict(...)."
        )
    known = {name: value for name, value in data.items() if name not in ("_target_", "split")}
    if any(holds_target(value) for value in known.values()):
        raise ConfigError(f"data in {path} names a constructor within a column's description; restore the file.")
    return build({"_target_": TABLE, **known}, "data")


def holds_target(node: Any) -> bool:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return (isinstance(node, dict) and "_target_" in node) or any(holds_target(child) for child in children)
