"""A level kept by a receding horizon over an exported model.

    python scripts/accuracy/receding_horizon.py [--seconds 240] [--keep DIR] [--picture docs/receding_horizon.png]

Two tanks in cascade: a pump fills the upper one, which drains into the lower one, whose level is measured. A model with
a hidden state is fitted to a record of random strokes of the pump, and exported to NumPy, a file that knows nothing of
node_fit. Its field becomes a function of CasADi, with exact derivatives; every second IPOPT finds the strokes of the
next 20 seconds for which the predicted level follows a reference, and the first of them goes to the tanks. The states
are read from the last rows. A controller that has the true equations and measures both levels says what could be
reached. It needs the extra `control`.
"""

import argparse
import functools
import operator
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np

import node_fit as nf
from node_fit.export.trials import load_module

STEP, HORIZON, ROWS = 1.0, 20, 20
LEAST_PUMP, MOST_PUMP = 0.0, 7.0
EFFORT = 0.02  # what a change of the stroke costs beside an error of the level
# The reference changes every so many seconds. Between these after a change, the level should be there, and the next
# change is beyond the horizon.
CHANGE, SETTLED = 60, (25, 40)


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


def export_model(data: nf.Dataset, folder: Path) -> nf.Export:
    """Fits a model to a record, and exports it."""
    fit = nf.fit(
        data,
        hidden=1,
        start=functools.partial(nf.Encoder, rows=ROWS, before=True),
        solver=nf.Solver(inputs="hold"),
        training=nf.Training(steps=300, window=60),
    )
    return nf.export(fit, "numpy", folder, data=data)


class Symbol:
    """A scalar of CasADi in arrays of NumPy, whose functions call its methods."""

    def __init__(self, value: Any):
        self.value = value

    def __neg__(self) -> "Symbol":
        return Symbol(-self.value)

    def __pow__(self, power: float) -> "Symbol":
        return Symbol(self.value**power)


def value_of(each: Any) -> Any:
    return each.value if isinstance(each, Symbol) else each


def use_functions() -> None:
    """Gives `Symbol` the operators and functions that CasADi has."""
    import casadi as ca

    for name in ("add", "sub", "mul", "truediv"):
        own = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda a, b, own=own: Symbol(own(a.value, value_of(b))))
        setattr(Symbol, f"__r{name}__", lambda a, b, own=own: Symbol(own(value_of(b), a.value)))
    for own in (ca.tanh, ca.exp, ca.log, ca.sqrt, ca.sin, ca.cos):
        setattr(Symbol, own.__name__, lambda a, own=own: Symbol(own(a.value)))


def exported_field(module: ModuleType) -> Any:
    """The field of an exported model as a function of CasADi, of its states and the stroke."""
    import casadi as ca

    y, u = ca.SX.sym("y", module.S), ca.SX.sym("u")
    states, inputs = (np.array([Symbol(each) for each in ca.vertsplit(x)], object) for x in (y, u))
    return ca.Function("field", [y, u], [ca.vertcat(*map(value_of, module.FIELD[0](0.0, states, inputs)))])


def true_field() -> Any:
    """The field of the tanks, whose first state is the lower level."""
    import casadi as ca

    y, u = ca.SX.sym("y", 2), ca.SX.sym("u")
    lower, upper = (ca.sqrt(ca.fmax(each, 1e-6)) for each in ca.vertsplit(y))
    return ca.Function("field", [y, u], [ca.vertcat(0.5 * upper - 0.45 * lower, 0.4 * u - 0.5 * upper)])


def controller(field: Any) -> Callable[[np.ndarray, np.ndarray, float, np.ndarray], np.ndarray]:
    """A function from the states now, the reference, the last stroke and a guess to the strokes of the horizon.

    The level is the first of the states of the field.
    """
    import casadi as ca

    size = field.size1_in(0)
    y, u = ca.MX.sym("y", size), ca.MX.sym("u")
    settings = {"number_of_finite_elements": 4, "simplify": True}
    step = ca.integrator("step", "rk", {"x": y, "p": u, "ode": field(y, u)}, 0.0, STEP, settings)
    problem = ca.Opti()
    strokes, now, aim, last = problem.variable(HORIZON), *(problem.parameter(n) for n in (size, HORIZON, 1))
    state, cost, before = now, 0, last
    for k in range(HORIZON):
        state = step(x0=state, p=strokes[k])["xf"]
        cost += (state[0] - aim[k]) ** 2 + EFFORT * (strokes[k] - before) ** 2
        before = strokes[k]
    problem.minimize(cost)
    problem.subject_to(problem.bounded(LEAST_PUMP, strokes, MOST_PUMP))
    problem.solver("ipopt", {"print_time": False, "expand": True}, {"print_level": 0, "sb": "yes", "max_iter": 60})

    def solve(states: np.ndarray, reference: np.ndarray, stroke: float, guess: np.ndarray) -> np.ndarray:
        for parameter, value in ((now, states), (aim, reference), (last, stroke)):
            problem.set_value(parameter, value)
        problem.set_initial(strokes, guess)
        try:
            problem.solve()
        except RuntimeError:  # Too many iterations: the best strokes so far will do.
            return np.asarray(problem.debug.value(strokes))
        return np.asarray(problem.value(strokes))

    return solve


class Control(NamedTuple):
    """A run of a controller, a number for each second: the lower level, the stroke, and the seconds of the decision."""

    levels: np.ndarray
    strokes: np.ndarray
    took: np.ndarray


def run(module: ModuleType | None, seconds: int) -> Control:
    """Keeps the level with an exported model; None for the true equations."""
    solve = controller(true_field() if module is None else exported_field(module))
    levels, ys, us, kept, took = np.array([6.0, 6.0]), [], [], [], []
    rng, guess = np.random.default_rng(1), np.full(HORIZON, 3.0)
    for now in range(ROWS + seconds):
        # The first rows, which the start of the model is read from, are driven by hand.
        stroke = 3.0
        ys.append(levels[1] + 0.01 * rng.standard_normal())
        if now >= ROWS:
            began = time.process_time()
            reference = np.array([wanted(now + k - ROWS) for k in range(1, HORIZON + 1)])
            states = levels[::-1] if module is None else states_now(module, ys, us)
            guess = solve(states, reference, us[-1], np.append(guess[1:], guess[-1]))
            stroke = float(np.clip(guess[0], LEAST_PUMP, MOST_PUMP))
            took.append(time.process_time() - began)
            kept.append(levels[1])
        us.append(stroke)
        levels = simulate(levels, stroke)
    return Control(np.array(kept), np.array(us[ROWS:]), np.array(took))


def states_now(module: ModuleType, ys: Sequence[float], us: Sequence[float]) -> np.ndarray:
    """The states at the last row, which an exported model reads from the last rows."""
    past = np.array([*us[-ROWS + 1 :], us[-1], us[-1]])
    return module.start(np.arange(ROWS + 1) * STEP, np.array([*ys[-ROWS:], np.nan]), past)[1]


def describe(name: str, found: Control) -> str:
    off = np.abs(found.levels - np.array([wanted(second) for second in range(len(found.levels))]))
    since = np.arange(len(off)) % CHANGE
    settled = off[(since >= SETTLED[0]) & (since < SETTLED[1])]
    return (
        f"| {name} | {np.sqrt(np.mean(off**2)):.3f} | {settled.mean():.3f} | "
        f"{1e3 * np.median(found.took):.0f} | {1e3 * found.took.max():.0f} |"
    )


def draw(found: Control, ideal: Control, path: Path) -> None:
    """The level beside its reference, and the strokes."""
    from node_fit.plots.curves import ACCENTS, INK, new_figure, save_figure, use_style

    with use_style():
        figure = new_figure(7.2, 3.0)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        ts = np.arange(len(found.levels)) * STEP
        above.plot(ts, [wanted(t) for t in ts], color=INK, linewidth=0.9, linestyle="--", label="reference")
        for each, colour, label in ((found, ACCENTS[0], "exported model"), (ideal, ACCENTS[1], "true equations")):
            above.plot(ts, each.levels, color=colour, linewidth=1.1, label=label)
            below.plot(ts, each.strokes, color=colour, linewidth=0.9, drawstyle="steps-post")
        above.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
        above.set(ylabel="level [cm]")
        below.set(ylabel="pump", xlabel="s")
        save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--rows", type=int, default=400, help="of the record that is fitted")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the export for the next time")
    parser.add_argument("--picture", type=Path, help="draw the levels and the strokes")
    given = parser.parse_args()
    use_functions()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.keep or Path(temporary)) / "tanks"
        if not folder.is_dir():
            print(export_model(record(given.rows), folder))
        found, ideal = run(load_module(folder / "model.py"), given.seconds), run(None, given.seconds)
    print("\n| controller | RMSE [cm] | mean error when settled [cm] | ms a decision, median | largest |")
    print("|---|---|---|---|---|")
    print(describe("exported model", found), describe("true equations, both levels measured", ideal), sep="\n")
    print(f"\nstrokes from {found.strokes.min():.2f} to {found.strokes.max():.2f} of {LEAST_PUMP:g} to {MOST_PUMP:g}")
    if given.picture:
        draw(found, ideal, given.picture)


def wanted(second: float) -> float:
    """The reference of the lower level [cm]."""
    return (4.0, 9.0)[int(second // CHANGE) % 2]


if __name__ == "__main__":
    main()
