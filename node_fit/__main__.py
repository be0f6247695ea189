"""The command `python -m node_fit`, also installed as `node-fit`."""

import os
import sys
import time
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from . import BEGAN
from .composition import explain
from .disk import explain_disk
from .leaderboard import Leaderboard
from .resuming import with_resumed

HERE = Path(__file__).parent


def shipped(folder: str, holds: str) -> Path:
    """The folder that is inside the package in an installed wheel and beside it in a checkout."""
    for parent in (HERE, HERE.parent):
        if (parent / folder / holds).is_file():
            return parent / folder
    raise FileNotFoundError(f"the installation lacks {folder}/{holds}; install node_fit again.")


def main() -> None:
    """Composes the config, runs the job or the jobs, and leaves with 0, or with a code that says what went wrong."""
    OmegaConf.register_new_resolver("shipped", lambda name: str(shipped("data", name) / name), replace=True)
    imported = time.perf_counter() - BEGAN
    codes: list[int] = []
    wanted_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"

    def job(config: DictConfig) -> int:
        from .application import run

        # A signal ends a multirun, not only the job that it met.
        stopped = [code for code in codes if code > 128]
        codes.append(stopped[-1] if stopped else run(config, imported, wanted_traceback))
        return codes[-1]

    # Hydra then raises what it would print in its own words.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[0] = "node_fit"
    try:
        sys.argv[1:] = with_resumed(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(shipped("conf", "config.yaml")), config_name="config")(job)()
    except BrokenPipeError:
        sys.exit(1)  # whoever read the output has seen enough
    except Exception as error:
        sentence = explain(error) or (explain_disk(error, ".") if isinstance(error, OSError) else str(error))
        if wanted_traceback:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(1)
    failed = max([code for code in codes if code] or [0])
    sys.exit(failed or int(Leaderboard.failures > 0))


if __name__ == "__main__":
    main()
