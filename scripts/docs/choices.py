"""Prints the table of docs/recipes.md of what `fit` chooses for some kinds of data.

python scripts/docs/choices.py            # prints the table
python scripts/docs/choices.py --write    # and puts it into the page
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from node_fit import MLP, NetworkReadout, Options
from node_fit.data.facts import Facts
from node_fit.fitting.resolve import Identified, Resolved, resolve
from node_fit.model.make_model import maker_class

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- choices -->\n", "<!-- end of choices -->\n"
COLUMNS = ("hidden", "start", "window", "steps", "restarts", "ridge", "inputs", "beside the network")
FREE = Facts(trajectories=3, rows=600, longest=200, values=1200)
SEVERAL = Facts(trajectories=12, rows=360, longest=30, values=720, noise=0.1)
SHORT = Facts(trajectories=1, rows=40, longest=40, values=80)
DRIVEN = Facts(
    1, 2000, 2000, 2000, driven=True, inputs="hold", inputs_reason="the inputs have 2 levels", validated=True
)
FEW = Facts(1, 300, 300, 300, driven=True, inputs="hold", inputs_reason="2 levels", validated=True)
EVENTS = Facts(1, 2000, 2000, 2000, driven=True, events=True, inputs="hold", inputs_reason="2 levels")
ANGLES = Facts(1, 2000, 2000, 2000, driven=True, angles=True, inputs="linear", inputs_reason="the inputs change")
FOUND = Identified(SimpleNamespace(error=0.05, hidden=1), "hidden", 1, "NRMSE of linear models")  # pyright: ignore
# Kinds of data, their facts, options that are given, and what an identification would find.
CASES: Mapping[str, tuple[Facts, Options, Identified]] = {
    "trajectories without inputs": (FREE, Options(), FOUND),
    "4 to 200 trajectories of 30 rows or more, noise over 3 %": (SEVERAL, Options(), FOUND),
    "fewer than 200 values, without inputs": (SHORT, Options(), FOUND),
    "a long record with inputs": (DRIVEN, Options(), FOUND),
    "at most 1,000 rows with inputs": (FEW, Options(), FOUND),
    "a long record with inputs and events": (EVENTS, Options(), FOUND),
    "a long record with inputs and angles": (ANGLES, Options(), FOUND),
    "a long record with inputs, `observation=network`": (DRIVEN, Options(observation=NetworkReadout), FOUND),
}


def plan_of(name: str) -> Resolved:
    """What `fit` would choose for one of the cases."""
    facts, options, found = CASES[name]
    plan = resolve(options, facts)
    return resolve(options, facts, found) if plan.identify else plan


def cells(plan: Resolved) -> list[str]:
    """A row of the table."""
    options, training = plan.options, plan.options.training
    ridge = " or ".join(f"{each:.2g}" for each in plan.ridges)
    linear = getattr(options.field, "keywords", {}).get("linear") and maker_class(options.field) is MLP
    return [
        str(options.hidden),
        maker_class(options.start).__name__ if callable(options.start) else options.start,
        "whole" if training.window is None else str(training.window),
        str(training.steps),
        str(options.restarts),
        ridge,
        options.solver.inputs,
        "a linear path" if linear else "",
    ]


def table() -> str:
    rows = [["data", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    rows += [[name, *cells(plan_of(name))] for name in CASES]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(page: str) -> str:
    """The page with the table between its marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    print(table(), end="")
    if "--write" in sys.argv:
        PAGE.write_text(with_table(PAGE.read_text()))
