"""What Hydra and OmegaConf say when they can't read a config, in one sentence with the key and the nearest name."""

import difflib
import re
import traceback
from collections.abc import Iterator
from typing import Any

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf import errors as omegaconf

from .targets import ALLOWED, ConfigError, located, nearest, one_line, parameters_of

PHRASES = {
    r"Ambiguous value .*?'(.*?)'\n": r"\1 gives several values; add --multirun to run each, or [] for one list.",
    r"Multiple values for (\S+)\.": r"\1 has an option already; write \1=OPTION without the plus sign.",
    r"Could not append .*at '(.*?)'": r"\1 exists already; write \1=VALUE without the plus sign.",
    r"Additional config directory '(.*)' not found": r"--config-dir: there is no folder '\1'.",
    r"Config group override .*Got (\w+)": r"A group takes the name of an option, as in optimizer=adam, and no \1.",
}


# Launchers that other packages bring, and the extra that installs them.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}


def explain(error: BaseException) -> str | None:
    """What went wrong when Hydra or OmegaConf read a config, in one sentence with the full key and the nearest name.

    **Arguments:**

    - `error`: an exception of this module, of Hydra, OmegaConf or YAML, as raised with `HYDRA_FULL_ERROR=1`.

    **Returns:** the sentence, or `None` for an exception from elsewhere.
    """
    text = str(error)
    match error:
        case ConfigError():
            return text
        case ConfigCompositionException(__cause__=omegaconf.OmegaConfBaseException() as cause):
            return explain(cause)
        case OverrideParseException():
            rule = "write key=value, close every bracket, and put quotes around a value with special characters"
            return one_line(f"The override {error.override} can't be read; {rule}.")
        case MissingConfigException(missing_cfg_file=str(path)):
            group, _, name = path.rpartition("/")
            group = group or "--config-name"
            if group == "hydra/launcher" and name in LAUNCHERS:
                extra = f"pip install 'node_fit[{LAUNCHERS[name]}]'"
                return f"hydra/launcher={name} comes with another package; install it by {extra}."
            known = f"; {nearest(name, error.options, f'{group}=')}" if error.options else ""
            return one_line(f"{group}={name} does not exist{known}")
        case omegaconf.ConfigKeyError(full_key=str(key)) | omegaconf.ConfigAttributeError(full_key=str(key)):
            return one_line(unknown_key(key, error.parent_node))
        case omegaconf.MissingMandatoryValue(full_key=str(key)):
            return f"{key} has no value; give it one with {key}=VALUE."
        case omegaconf.InterpolationKeyError(full_key=str(key), parent_node=DictConfig() as parent):
            name = text.partition("'")[2].partition("'")[0]
            return one_line(f"{key} refers to ${{{name}}}, no key of the config; {nearest(name, keys_beside(parent))}")
        case omegaconf.OmegaConfBaseException(full_key=str(key)):
            return one_line(f"{key} can't be used: {text.splitlines()[0]}")
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML, {error.problem}."
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    reading = frames and frames[-1].partition(".")[0] in ("hydra", "omegaconf", "yaml", "antlr4")
    if not reading and not isinstance(error, (HydraException, omegaconf.OmegaConfBaseException, yaml.YAMLError)):
        return None
    if isinstance(error, AssertionError):  # of Hydra's, which says nothing of `+=`
        return "An override lacks its key; write key=value."
    for pattern, sentence in PHRASES.items():
        if found := re.match(pattern, text):
            return found.expand(sentence)
    return one_line(text or f"The config can't be read: {error!r}")


def unknown_key(key: str, parent: Any) -> str:
    """A sentence on a key that the config lacks, though its constructor may have it."""
    owner, _, name = key.rpartition(".")
    siblings = {str(known) for known in parent or ()} - {"hydra"}
    if "_target_" in siblings:
        try:
            arguments = set(parameters_of(located(parent["_target_"], key, ALLOWED)))
        except ConfigError:
            arguments = set()
        if name in arguments and name in keys_beside(parent):  # a group of its own
            return f"{key} is no key of the config; write {name}=VALUE."
        if name in arguments:
            return f"{key} is left at its default by the config; to set it, write +{key}=VALUE."
        siblings = siblings - {"_target_", "_partial_"} | arguments
    if not siblings:
        return f"{key} is no key of the config; {owner} holds a value and no keys; to add one, write +{key}=VALUE."
    namesakes = [known for known in keys_beside(parent) if known.endswith(f".{name}")]
    if namesakes and not difflib.get_close_matches(name, siblings, 1):
        return f"{key} is no key of the config; did you mean {namesakes[0]}?"
    return f"{key} is no key of the config; {nearest(name, siblings, owner and f'{owner}.')}"


def keys_beside(node: Any) -> list[str]:
    """The full keys of the config that a node belongs to, without Hydra's own and `_target_`."""
    root = OmegaConf.to_container(node._get_root())
    return [key for key in full_keys(root) if not re.match(r"hydra\b|.*\._", key)]


def full_keys(node: Any, prefix: str = "") -> Iterator[str]:
    for name, child in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{name}"
        yield from full_keys(child, f"{prefix}{name}.")
