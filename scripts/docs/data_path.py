"""Lists the modules that data are handed through, on the way of a fit and at the end of a run.

    python scripts/docs/data_path.py           # both fits and the end of a run
    python scripts/docs/data_path.py driven    # one of short, driven, end

A module counts if one of its functions is called with a `Dataset` (on the way of a fit), or with a `Dataset`, a `Fit`
or an `Assessment` (at the end of a run), alone or in a list, a tuple or a mapping. Properties and methods of these
classes count for the module of the class.
"""

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import node_fit
from node_fit.data.dataset import Dataset
from node_fit.evaluation.diagnosis import Assessment
from node_fit.fitting.result import Fit

PACKAGE = Path(node_fit.__file__).parent
# Members of a container that are looked at.
MOST_MEMBERS = 20


class Route:
    """The modules entered with an object of some classes, in their order, with the functions that were called.

    **Arguments:** `kinds`: the classes. `between`: the name of a function, if only its calls count.
    """

    def __init__(self, kinds: tuple[type, ...], between: str | None = None):
        self.kinds = kinds
        self.between = between
        self.is_on = between is None
        self.modules: dict[str, dict[str, None]] = {}

    def holds(self, value: Any, *, inside: bool = False) -> bool:
        if isinstance(value, self.kinds):
            return True
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return not inside and 0 < len(members) < MOST_MEMBERS and any(self.holds(each, inside=True) for each in members)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        if self.between and code.co_qualname == self.between and event in ("call", "return"):
            self.is_on = event == "call"
        if event == "call" and self.is_on and any(self.holds(value) for value in arguments(frame, code)):
            module = os.path.relpath(code.co_filename, PACKAGE)
            self.modules.setdefault(module, {})[code.co_qualname] = None

    def walk(self, task: Callable[[], Any]) -> None:
        sys.setprofile(self)
        try:
            task()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)

    def show(self, title: str) -> None:
        print(f"{title}: {len(self.modules)} modules")
        for module, functions in self.modules.items():
            print(f"  {module}: {', '.join(functions)}")


def arguments(frame: FrameType, code: CodeType) -> list[Any]:
    """The values of a call's arguments."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return [frame.f_locals.get(name) for name in code.co_varnames[:count]]


def short_record() -> tuple[Dataset, Dataset]:
    """Damped oscillations, measured now and then."""
    ts = np.linspace(0, 10, 60)
    ys = np.exp(-0.1 * ts)[:, None] * np.stack([np.cos(ts), np.sin(ts)], axis=1)
    return Dataset.from_arrays([ts, ts], [ys, 0.8 * ys]), Dataset.from_arrays([ts], [0.6 * ys])


def driven_record() -> tuple[Dataset, Dataset]:
    """A long record of a first-order system that a switch drives."""
    ts = 0.1 * np.arange(600)
    us, ys = np.sign(np.sin(0.7 * ts) + 0.3 * np.sin(2.1 * ts)), np.zeros(600)
    for row in range(599):
        ys[row + 1] = ys[row] + 0.1 * (us[row] - ys[row])
    ys += 0.01 * np.random.default_rng(0).normal(size=600)
    parts = [slice(0, 400), slice(400, 600)]
    train, validation = (
        Dataset.from_arrays([ts[at]], [ys[at, None]], [us[at, None]], states=["y"], inputs=["u"]) for at in parts
    )
    return train, validation


def walk_fit(name: str) -> None:
    train, validation = short_record() if name == "short" else driven_record()
    path = Route((Dataset,))
    training = node_fit.Training(steps=4, chunk_steps=2)
    path.walk(lambda: node_fit.fit(train, validation=validation, training=training, progress=False))
    path.show(f"a fit of a {name} record")


def walk_end() -> None:
    from node_fit.__main__ import main

    path = Route((Dataset, Fit, Assessment), between="Job.finish")
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = [
            "node-fit",
            "data=spiral",
            "recipe=direct",
            "training.steps=4",
            "training.chunk_steps=2",
            f"hydra.run.dir={folder}",
        ]
        path.walk(main)
    path.show("the end of a run")


def run() -> None:
    """Each in a process of its own, since what a process knows already is not prepared again."""
    if len(sys.argv) > 1:
        return walk_end() if sys.argv[1] == "end" else walk_fit(sys.argv[1])
    for name in ("short", "driven", "end"):
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    run()
