"""What a config describes: its keys checked, its objects made."""

from contextlib import suppress
from typing import Any

import jax
from omegaconf import DictConfig, OmegaConf

from .configuration import build
from .placement import Placement
from .targets import ConfigError

PARTS = ("data", "field", "start", "observation", "solver", "optimizer", "recipe", "ensemble")


def build_parts(config: DictConfig) -> tuple[dict[str, Any], Any]:
    """The objects that a config describes, by their keys, and what is called with them."""
    extensions = list(config.extensions)
    parts = {key: build(config[key], key, extensions=extensions) for key in PARTS}
    return parts, build(config.train, "train", extensions=extensions)


def hidden_states(config: DictConfig) -> int | list[str]:
    """The config's `hidden`, a number or names.

    **Raises:** `ConfigError` if it is neither.
    """
    hidden = OmegaConf.to_container(config.hidden) if OmegaConf.is_config(config.hidden) else config.hidden
    if isinstance(hidden, int) and not isinstance(hidden, bool):
        return hidden
    if isinstance(hidden, list) and all(isinstance(name, str) for name in hidden):
        return hidden
    raise ConfigError(f"hidden must be a number of states or a list of their names, got {hidden!r}.")


def placement_of(config: DictConfig) -> Placement:
    """Where the config's run has its arrays.

    **Raises:** `ValueError` if the devices are not there.
    """
    device = config.device
    if OmegaConf.is_config(device):
        count = device.count
        if isinstance(count, int) and count > 1 and device.kind != "gpu":
            with suppress(RuntimeError):  # JAX is in use already, and has the devices that it has
                jax.config.update("jax_num_cpu_devices", count // (OmegaConf.select(device, "processes") or 1))
        if count is None or (isinstance(count, int) and not isinstance(count, bool)):
            placement = Placement(config.precision, device.kind, count)
            _ = placement.devices
            return placement
        raise ConfigError(f"device.count must be an integer or null, got {count!r}.")
    raise ConfigError(f"device is a group of keys; choose device=auto, cpu or gpu on the command line, got {device!r}.")


def check_top(config: DictConfig) -> None:
    """Refuses keys at the top of the config that are absent, or have the wrong type or value."""
    for key in (*PARTS, "train", "evaluation", "device"):
        if OmegaConf.select(config, key) is None:
            raise ConfigError(f"{key} must not be null; leave it out for its default.")
    for key, choices in (
        ("precision", ("x32", "x64")),
        ("resume_from", ("latest", "best")),
        ("sweep", ("serial", "vectorized")),
    ):
        if config[key] not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {config[key]!r}.")
    if config.compile_cache is not False and not isinstance(config.compile_cache, str):
        raise ConfigError(f"compile_cache must be auto, false or a folder, got {config.compile_cache!r}.")
    window = OmegaConf.select(config, "evaluation.window")
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 2):
        raise ConfigError(f"evaluation.window must be null or an integer of at least 2, got {window!r}.")
    if not isinstance(config.seed, int) or isinstance(config.seed, bool) or config.seed < 0:
        raise ConfigError(f"seed must be an integer of at least 0, got {config.seed!r}.")
