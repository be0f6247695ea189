"""The config.yaml of a run as plain values: it may come from a stranger, so nothing in it is resolved or called."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf import errors as omegaconf

from .targets import ConfigError

# Covariates by trajectory are the longest part of a config [bytes].
LARGEST = 4 << 20


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
    return {str(key): value for key, value in content.items()}
