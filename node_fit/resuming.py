"""`resume=DIRECTORY`: the command line of the run that is gone on with."""

from pathlib import Path

from omegaconf import OmegaConf

from .configuration import ConfigError

# What a resumed run may be told anew; all else would make it another run.
CHANGEABLE = ("train.steps", "train.patience", "device", "verbose", "hydra.")


def with_resumed(arguments: list[str]) -> list[str]:
    """The arguments, with those of the run that `resume=` names before them, if it names one.

    **Raises:** `ConfigError` if it names no run, or the run would become another one.
    """
    named = [argument.partition("=")[2] for argument in arguments if argument.startswith("resume=")]
    if not named or named[-1] in ("", "null"):
        return arguments
    directory = Path(named[-1])
    overrides = directory / ".hydra" / "overrides.yaml"
    if not overrides.is_file():
        fault = (
            "there is no such directory"
            if not directory.exists()
            else f"it holds no {overrides.relative_to(directory)}"
        )
        raise ConfigError(f"resume={directory} is no run: {fault}; name a directory such as outputs/DATE/TIME.")
    others = [argument for argument in arguments if not argument.startswith("resume=")]
    for argument in others:
        key = argument.lstrip("+~").partition("=")[0]
        if not argument.startswith("-") and not key.startswith(CHANGEABLE):
            raise ConfigError(
                f"resume goes on with a run as it was, so {key} can't be changed; leave it out, or start a new run. "
                f"Only {', '.join(name.rstrip('.') for name in CHANGEABLE)} may be given."
            )
    if any(argument in ("-m", "--multirun") for argument in others):
        raise ConfigError("resume goes on with one run and can't be combined with --multirun.")
    earlier = [line for line in map(str, OmegaConf.load(overrides)) if not line.startswith("resume=")]
    # The run keeps its own record of how it began.
    place = [f"resume={directory}", f"hydra.run.dir={directory}", "hydra.output_subdir=null"]
    return [*earlier, *others, *place]
