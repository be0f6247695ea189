"""A level kept by a receding horizon over an exported model.

    python scripts/accuracy/receding_horizon.py [--seconds 60]

Two tanks in cascade: a pump fills the upper one, which drains into the lower one, whose level is measured. A model with
a hidden state is fitted to a record of random strokes of the pump, and exported to NumPy, a file that knows nothing of
node_fit. The file finds the states from the last rows, and its step is a function of CasADi; every second IPOPT finds
the strokes of the next ten seconds for which the predicted level follows a reference, and the first of them goes to the
tanks. It needs the extra `control`.
"""

import argparse
import functools
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np

import node_fit as nf
from node_fit.export.trials import load_module

STEP, HORIZON, ROWS = 1.0, 10, 20
LEAST_PUMP, MOST_PUMP = 0.0, 7.0


def flow(levels: np.ndarray, pump: float) -> np.ndarray:
    """The derivatives of the levels of two tanks that drain by Torricelli's law [cm/s]."""
    upper, lower = np.sqrt(np.maximum(levels, 0))
    return np.array([0.4 * pump - 0.5 * upper, 0.5 * upper - 0.45 * lower])


def simulate(levels: np.ndarray, pump: float, substeps: int = 20) -> np.ndarray:
    """The levels after a step with a constant stroke, by Euler's method in small steps."""
    for _ in range(substeps):
        levels = levels + STEP / substeps * flow(levels, pump)
    return levels


def record(rows: int, seed: int = 0) -> nf.Dataset:
    """A record of random strokes, of which only the lower level is measured, with a little noise."""
    rng, levels = np.random.default_rng(seed), np.array([6.0, 6.0])
    strokes = np.repeat(rng.uniform(LEAST_PUMP, MOST_PUMP, rows // 8 + 1), 8)[:rows]
    measured = []
    for stroke in strokes:
        measured.append(levels[1] + 0.01 * rng.standard_normal())
        levels = simulate(levels, stroke)
    ts = STEP * np.arange(rows)
    return nf.Dataset.from_arrays(ts, np.array(measured)[:, None], strokes[:, None], states=["level"], inputs=["pump"])


def exported_model(data: nf.Dataset, folder: Path) -> tuple[ModuleType, nf.Export]:
    """The module of a fit to a record."""
    fit = nf.fit(
        data,
        hidden=1,
        start=functools.partial(nf.Encoder, rows=ROWS, before=True),
        solver=nf.Solver(inputs="hold"),
        training=nf.Training(steps=300, window=60),
    )
    done = nf.export(fit, "numpy", folder, data=data)
    return load_module(folder / "model.py"), done


def controller(module: ModuleType) -> Any:
    """A function from the states now, the reference and the last stroke to the strokes of the horizon.

    The step of the exported model is a callback of CasADi.
    """
    import casadi as ca

    size = module.S * module.MEMBERS

    class Step(ca.Callback):
        """The states after a step, from the states and the stroke."""

        def __init__(self) -> None:
            super().__init__()
            self.construct("step", {"enable_fd": True})

        def get_n_in(self) -> int:
            return 2

        def get_n_out(self) -> int:
            return 1

        def get_sparsity_in(self, i: int) -> Any:
            return ca.Sparsity.dense(size if i == 0 else 1, 1)

        def get_sparsity_out(self, i: int) -> Any:
            return ca.Sparsity.dense(size, 1)

        def eval(self, arg: list[Any]) -> list[Any]:
            y, u = np.asarray(arg[0]).ravel(), np.asarray(arg[1]).ravel()
            return [ca.DM(module.step(0.0, STEP, y, u))]

    step = Step()
    problem = ca.Opti()
    strokes, now, wanted, last = problem.variable(HORIZON), *(problem.parameter(n) for n in (size, HORIZON, 1))
    y, cost = now, (strokes[0] - last) ** 2 * 0.02
    for k in range(HORIZON):
        y = step(y, strokes[k])
        cost += (y[0] - wanted[k]) ** 2 + (0.02 * (strokes[k] - strokes[k - 1]) ** 2 if k else 0)
    problem.minimize(cost)
    problem.subject_to(problem.bounded(LEAST_PUMP, strokes, MOST_PUMP))
    quiet = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes", "hessian_approximation": "limited-memory"}}
    problem.solver("ipopt", quiet | {"ipopt": quiet["ipopt"] | {"max_iter": 40}})

    def solve(states: np.ndarray, reference: np.ndarray, before: float, guess: np.ndarray) -> np.ndarray:
        for parameter, value in ((now, states), (wanted, reference), (last, before)):
            problem.set_value(parameter, value)
        problem.set_initial(strokes, guess)
        try:
            problem.solve()
        except RuntimeError:  # Too many iterations: the best strokes so far will do.
            return np.asarray(problem.debug.value(strokes))
        return np.asarray(problem.value(strokes))

    # The callback has to live as long as the problem.
    solve.step = step  # pyright: ignore[reportFunctionMemberAccess]
    return solve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=400, help="of the record that is fitted")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        module, done = exported_model(record(given.rows), Path(folder) / "tanks")
        print(done)
        solve = controller(module)
        levels, ys, us = np.array([6.0, 6.0]), [], []
        rng, guess, off, moved = np.random.default_rng(1), np.full(HORIZON, 3.0), [], []
        for now in range(ROWS + given.seconds):
            # The first rows, which the start of the model is read from, are driven by hand.
            stroke = 3.0
            ys.append(levels[1] + 0.01 * rng.standard_normal())
            if now >= ROWS:
                reference = np.array([wanted(now + k - ROWS) for k in range(1, HORIZON + 1)])
                ts = np.arange(ROWS + 1) * STEP
                past_us = np.array([*us[-ROWS + 1 :], us[-1], us[-1]])
                _, states = module.start(ts, np.array([*ys[-ROWS:], np.nan]), past_us)
                guess = solve(states, reference, us[-1], np.append(guess[1:], guess[-1]))
                stroke = float(np.clip(guess[0], LEAST_PUMP, MOST_PUMP))
                off.append(levels[1] - wanted(now - ROWS))
                moved.append(stroke)
            us.append(stroke)
            levels = simulate(levels, stroke)
    settled = [abs(each) for second, each in enumerate(off) if second % 30 >= 20]
    print(f"{len(off)} s of control: {np.mean(settled):.3f} cm off, 20 s and later after each change of the reference")
    print(f"strokes from {min(moved):.2f} to {max(moved):.2f} of {LEAST_PUMP:g} to {MOST_PUMP:g}")


def wanted(second: float) -> float:
    """The reference of the lower level [cm]: another one every 30 s."""
    return (4.0, 9.0)[int(second // 30) % 2]


if __name__ == "__main__":
    main()
