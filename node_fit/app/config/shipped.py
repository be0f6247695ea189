"""The shipped folders, and the keys of the shipped config."""

import functools
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

PACKAGE = Path(__file__).parents[2]


def shipped(folder: str, holds: str) -> Path:
    """Finds a shipped folder: inside the package in an installed wheel, next to it in a checkout."""
    for parent in (PACKAGE / "shipped", PACKAGE.parent):
        if (parent / folder / holds).is_file():
            return parent / folder
    raise FileNotFoundError(f"the installation is missing {folder}/{holds}; reinstall node_fit.")


@functools.cache
def shipped_config() -> DictConfig:
    """The shipped `config.yaml` as written, without its groups and Hydra's node."""
    config = OmegaConf.load(shipped("conf", "config.yaml") / "config.yaml")
    assert isinstance(config, DictConfig)
    return OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("defaults", "hydra")])


def shipped_option(group: str) -> DictConfig | None:
    """The option of a group that `config.yaml` selects, as written; None if it selects none."""
    folder = shipped("conf", "config.yaml")
    for each in OmegaConf.load(folder / "config.yaml").defaults:
        if OmegaConf.is_dict(each) and each.get(group):
            option = OmegaConf.load(folder / group / f"{each[group]}.yaml")
            assert isinstance(option, DictConfig)
            return option
    return None


@functools.cache
def shipped_groups() -> tuple[str, ...]:
    """The groups from which `config.yaml` selects options."""
    defaults = OmegaConf.load(shipped("conf", "config.yaml") / "config.yaml").defaults
    named = [str(name) for each in defaults if OmegaConf.is_dict(each) for name in each]
    return tuple(name for name in named if name.isidentifier())


def options_with(key: str) -> list[str]:
    """The options of a group that have a key, such as `optimizer=adam` for `optimizer.clip`."""
    group, _, name = key.partition(".")
    found = []
    for path in sorted((shipped("conf", "config.yaml") / group).glob("*.yaml")) if group in shipped_groups() else ():
        if name in OmegaConf.load(path) and name.isidentifier():
            found.append(f"{group}={path.stem}")
    return found


@functools.cache
def known_keys() -> dict[str, frozenset[str]]:
    """The keys that the commands read: those at the top, under `""`, and those of groups without a constructor."""
    conf = shipped("conf", "config.yaml")
    groups = {
        path.name for path in conf.iterdir() if path.is_dir() and path.name not in ("experiment", "hydra", "tune")
    }
    config, device = shipped_config(), OmegaConf.load(conf / "device" / "auto.yaml")
    nodes = {"": [*config, *groups], "evaluation": config.evaluation, "device": device}
    return {name: frozenset(map(str, node)) for name, node in nodes.items()}
