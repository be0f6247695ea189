"""The command `python -m node_fit.discover`: finds equations in the training data, and fits their constants."""

import sys
import time

from omegaconf import DictConfig, OmegaConf, open_dict

from ..app.application import run_command
from ..app.config.build import build_parts, errors_of_data
from ..app.config.targets import ConfigError
from ..app.launching import launch, print_error, register, wants_tracebacks
from ..startup import BEGAN
from .discovery import Discovery, discover

USAGE = """\
usage: python -m node_fit.discover data=table data.path=FILE 'data.states=[x,y]' [effort=quick] [KEY=VALUE ...]

Find equations in the training data, and write the run of a fit of their constants. The keys are those of
`python -m node_fit`, except field; effort=quick, normal or thorough says how many candidates are simulated."""


def main() -> None:
    """Composes the config, finds equations, and fits them; exits with 0, or with 1 if none explains the data."""
    if sys.argv[1:2] in (["--help"], ["-h"]):
        print(USAGE)
        return
    imported = time.perf_counter() - BEGAN
    tracebacks = wants_tracebacks()
    codes: list[int] = []

    def job(config: DictConfig) -> int:
        register()
        try:
            found = search(config)
            print(found, flush=True)
            codes.append(run_command(with_equations(config, found), imported, tracebacks) if found.explained else 1)
        except Exception as error:  # Hydra would add its own text.
            if tracebacks:
                raise
            print_error(error)
            codes.append(1)
        return codes[-1]

    check_field_words(sys.argv[1:])
    launch("node_fit.discover", "config", job, tracebacks)
    sys.exit(max(codes, default=0))


def check_field_words(words: list[str]) -> None:
    """Ends the process with a sentence if a field is given, which is what is searched for."""
    for word in words:
        if word.lstrip("+").startswith(("field=", "field.")):
            print_error(ConfigError(f"{word}: the field is searched for; leave it out, or use python -m node_fit."))
            sys.exit(1)


def search(config: DictConfig) -> Discovery:
    """The equations of the training data that a config describes."""
    with errors_of_data():
        splits, _ = build_parts(config).data.load_and_tell()
    return discover(splits.train, effort=config.effort, seed=int(config.seed))


def with_equations(config: DictConfig, found: Discovery) -> DictConfig:
    """The config of a fit of the equations, which begins at the constants that were found, and fits the starts."""
    best = found.found
    field = {"_target_": "node_fit.Known", "_partial_": True, "triggers": []}
    with open_dict(config):
        config.field = OmegaConf.create(field | {"equations": best.equations, "constants": best.constants})
        if config.start == "auto" or (OmegaConf.is_config(config.start) and "_target_" not in config.start):
            config.start = OmegaConf.create({"_target_": "node_fit.Fitted", "_partial_": True, "given": 10})
    return config


if __name__ == "__main__":
    main()
