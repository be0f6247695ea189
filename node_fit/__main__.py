"""The command `python -m node_fit`, also installed as `node-fit`."""

import sys
import time

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from . import BEGAN
from .launching import launch, register, wants_tracebacks
from .leaderboard import Leaderboard
from .vectorized import Vectorized


def main() -> None:
    """Composes the config, runs the job or the jobs, and leaves with 0, or with a code that says what went wrong."""
    imported = time.perf_counter() - BEGAN
    codes: list[int] = []
    tracebacks = wants_tracebacks()

    def job(config: DictConfig) -> int:
        from .application import run

        if config.sweep == "vectorized" and HydraConfig.get().mode == RunMode.MULTIRUN:
            Vectorized.wait(config, imported)
            return 0
        register()  # A launcher may have brought us to another process, where `codes` is a copy.
        # A signal ends a multirun, not only the job that it met.
        stopped = [code for code in codes if code > 128]
        codes.append(stopped[-1] if stopped else run(config, imported, tracebacks))
        return codes[-1]

    launch("node_fit", "config", job, tracebacks)
    failed = max([code for code in (*codes, *Vectorized.codes) if code] or [0])
    sys.exit(failed or int(Leaderboard.failures > 0))


if __name__ == "__main__":
    main()
