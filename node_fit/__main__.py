"""The command `python -m node_fit`, also installed as `node-fit`."""

if __name__ == "__main__":
    from .startup import start_command

    start_command()  # before anything heavy is imported

import gc
import importlib
import sys
import time

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from .app.launching import launch, register, wants_tracebacks
from .app.leaderboard import Leaderboard
from .app.vectorized import Vectorized, runs_at_once
from .startup import BEGAN

# First words: of a command that fits, where it can be left out, and of the command that shows the page of a run again.
FIT, SHOW = "fit", "open"
# Modules of the other commands, by their names after `node-fit`.
COMMANDS = {
    "analysis": "node_fit.analysis.__main__",
    "app": "node_fit.workbench.__main__",
    "predict": "node_fit.predict",
    "discover": "node_fit.discover.__main__",
    "export": "node_fit.export.__main__",
    "report": "node_fit.report.__main__",
    "sample": "node_fit.sample.__main__",
    "tune": "node_fit.tune",
}


def main() -> None:
    """Composes the config, runs one job or a multirun, and exits with 0 or the code of a failure.

    With `open` as the first word, writes and shows the page of a run instead. The name of another command runs that.
    """
    if sys.argv[1:2] == [FIT]:
        del sys.argv[1]
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.argv[:2] = [f"node-fit {sys.argv[1]}"]
        return importlib.import_module(COMMANDS[sys.argv[0].split()[1]]).main()
    if sys.argv[1:2] == [SHOW]:
        from .report.__main__ import main as report

        return report(sys.argv[2:], "node-fit open", show=True)
    imported = time.perf_counter() - BEGAN
    codes: list[int] = []
    tracebacks = wants_tracebacks()

    def job(config: DictConfig) -> int:
        from .app.application import run_command

        if not codes:
            gc.freeze()  # Exempt imported objects from garbage collection.
        if HydraConfig.get().mode == RunMode.MULTIRUN and runs_at_once(config):
            Vectorized.wait(config, imported)
            return 0
        register()  # A launcher can call this in another process, where `codes` is a copy.
        # A signal ends the whole multirun, not only the job that receives it.
        stopped = [code for code in codes if code > 128]
        codes.append(stopped[-1] if stopped else run_command(config, imported, tracebacks))
        return codes[-1]

    launch("node_fit", "config", job, tracebacks, commands=(FIT, SHOW, *COMMANDS))
    failed = max([code for code in (*codes, *Vectorized.codes) if code] or [0])
    sys.exit(failed or int(Leaderboard.failures > 0))


if __name__ == "__main__":
    main()
