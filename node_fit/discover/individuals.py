"""Equations with constants that differ between trajectories: found in one of them, and fitted to each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..data.dataset import Dataset
from .formulas import Formula, lift, put_in
from .judging import Judge, JudgedSystem
from .smoothing import Smoothed
from .verdict import decide

# Minimum number of trajectories, number of found systems that are fitted to all of them, and evaluations of each fit.
FEWEST_ALIKE, TRIED, EVALUATIONS = 3, 3, 40
# Maximum number of constants in the equation of a state; with three, it follows most of what an unmeasured state does.
# Minimum share of the variance that it explains in each trajectory.
MOST_CONSTANTS, LEAST_SHARE = 2, 0.95
# Largest share of the variance that is printed [%].
MOST_SAID = 99.9
# Spread of a constant over the trajectories above which it differs, in units of its mean.
DIFFERS = 0.03


@dataclass(frozen=True)
class Individuals:
    """Equations that describe each trajectory with constants of its own.

    - `equations`: by state. `constants`: by name, one value for each trajectory.
    - `explained`: share of the variance that they explain in every trajectory at least.
    """

    equations: Mapping[str, str]
    constants: Mapping[str, Sequence[float]]
    explained: float

    @property
    def varying(self) -> dict[str, Sequence[float]]:
        """The constants that differ between trajectories."""
        return {
            name: values
            for name, values in self.constants.items()
            if np.std(values) > DIFFERS * max(abs(float(np.mean(values))), 1e-300)
        }

    @property
    def keys(self) -> str:
        """The options that fit these constants to each trajectory."""
        equations = ", ".join(f'{state}: "{text}"' for state, text in self.equations.items())
        kinds = {name: "lognormal" if min(values) > 0 else "normal" for name, values in self.varying.items()}
        random = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        return f"field=known 'field.equations={{{equations}}}' 'random={{{random}}}'"

    @property
    def advice(self) -> str:
        """The options, and the reason for them."""
        return (
            f"{self.keys}, since with constants of its own, each trajectory follows these equations; or measure what "
            "differs between trajectories"
        )

    def __str__(self) -> str:
        systems = ", ".join(f"d{state}/dt = {text}" for state, text in self.equations.items())
        ranges = ", ".join(
            f"{name} from {min(values):.3g} to {max(values):.3g}" for name, values in self.varying.items()
        )
        share = min(100 * self.explained, MOST_SAID)
        return (
            "no equation describes all trajectories with the same constants. With constants of its own, each follows "
            f"{systems} (at least {share:.3g} % of its variance; {ranges}). These constants differ, or an unmeasured "
            f"state does; {self.keys} fits such constants."
        )


def may_differ(data: Dataset) -> bool:
    """Whether constants that differ can be told from data: of three trajectories or more, without inputs.

    A few constants follow a short record however an input drives it.
    """
    return len(data.trajectories) >= FEWEST_ALIKE and not data.inputs


def fit_individuals(
    records: Sequence[Smoothed], names: tuple[Sequence[str], Sequence[str]], systems: Sequence[Mapping[str, str]]
) -> Individuals | None:
    """Fits systems to each record alone, and returns the best of those that describe all; None if there is none.

    **Arguments:** `names`: names of the states and of the inputs. `systems`: equations with numbers, by state.
    """
    judges = [Judge([record], *names) for record in records]
    best: tuple[float, Individuals] | None = None
    lifted = [tuple(lift(text, state) for state, text in texts.items()) for texts in systems]
    small = [system for system in lifted if all(len(formula.constants) <= MOST_CONSTANTS for formula in system)]
    for formulas in small[:TRIED]:
        judged = fit_each(judges, formulas)
        if judged is None:
            continue
        evidence = sum(each.evidence for each in judged)
        if best is None or evidence < best[0]:
            best = evidence, describe_individuals(names[0], judged)
    if best is None or not best[1].varying or best[1].explained < LEAST_SHARE:
        return None
    return best[1]


def fit_each(judges: Sequence[Judge], formulas: tuple[Formula, ...]) -> list[JudgedSystem] | None:
    """Fits a system to the record of each judge; None if it does not describe one of them."""
    fitted: list[JudgedSystem] = []
    for judge in judges:
        judge.choose_steps(formulas)
        judged = judge.judge([formulas], trials=EVALUATIONS)
        if not judged or not decide(judge, judged[0])[0]:
            return None
        fitted.append(judged[0])
    return fitted


def describe_individuals(states: Sequence[str], judged: Sequence[JudgedSystem]) -> Individuals:
    """Names the constants of a system, and collects their values in each trajectory."""
    equations: dict[str, str] = {}
    constants: dict[str, list[float]] = {}
    for place, state in enumerate(states):
        formula = judged[0].formulas[place]
        factors: list[str] = []
        for at in range(len(formula.constants)):
            name, values = f"c{len(constants) + 1}", [system.formulas[place].constants[at] for system in judged]
            sign = -1 if max(values) < 0 else 1
            factors.append(f"-{name}" if sign < 0 else name)
            constants[name] = [sign * value for value in values]
        equations[state] = put_in(formula.text, factors)
    return Individuals(equations, constants, 1 - max(system.error for system in judged))
