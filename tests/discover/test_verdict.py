"""When a system is called an equation of the records: by what it explains, its residuals, and the row before."""

from types import SimpleNamespace

import numpy as np
import pytest

from node_fit.discover.balance import Balance
from node_fit.discover.formulas import Formula
from node_fit.discover.judging import cut_pieces
from node_fit.discover.verdict import SMALLEST_LEAD, decide, past_does_as_well

RNG = np.random.default_rng(0)
WHITE = RNG.standard_normal(400)
WAVE = 3 * np.sin(np.arange(400) / 20) + 0.3 * RNG.standard_normal(400)


def formula_of(*constants: float, terms: tuple[str, ...] = ("x",)) -> Formula:
    return Formula(tuple("{0}*" + term for term in terms), constants, terms, 2 * len(terms))


def judge_of(raw: np.ndarray) -> SimpleNamespace:
    record = SimpleNamespace(raw=raw[:, None], values=raw[:, None])
    return SimpleNamespace(measured=np.array([0]), records=[record], scale=np.ones(1), states=["x"])


def judged_of(left: np.ndarray, escapes: bool = False) -> SimpleNamespace:
    """Residuals by window, as a judge has them."""
    windows = [left[window] for window in cut_pieces(len(left))]
    by_window = np.full((max(map(len, windows)), 1, len(windows)), np.nan)
    for at, window in enumerate(windows):
        by_window[: len(window), 0, at] = window
    return SimpleNamespace(left=by_window, escapes=escapes, formulas=[formula_of(1.0)])


def correlated(count: int, share: float) -> np.ndarray:
    """Noise whose neighbours correlate by a share."""
    noise = RNG.standard_normal(count)
    for row in range(1, count):
        noise[row] = share * noise[row - 1] + np.sqrt(1 - share**2) * noise[row]
    return noise


def test_an_equation_is_found_if_it_leaves_white_noise():
    fits, explains, text = decide(judge_of(WAVE), judged_of(0.3 * WHITE))
    assert fits and explains and text.startswith("found an equation; it explains 98")


@pytest.mark.parametrize(
    ("left", "escapes"),
    [(3 * WHITE, False), (0.5 * correlated(400, 0.9), False), (0.3 * WHITE, True)],
    ids=["explains too little", "leaves waves", "runs away"],
)
def test_no_equation_is_found_if_one_condition_fails(left, escapes):
    fits, explains, text = decide(judge_of(WAVE), judged_of(left, escapes))
    assert not fits and not explains and text.startswith("no equation of these terms explains the record")


def test_few_rows_may_correlate_by_chance():
    """By 0.6, which ten rows may and four hundred may not."""
    for rows, expected in ((10, True), (400, False)):
        waves = 0.1 * np.resize([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0], rows)
        alike = float(waves[1:] @ waves[:-1] / (waves @ waves))
        assert alike > 0.5 and (alike < 0.5 + rows**-0.5) == expected
        raw = np.resize([0.5, -0.5, 0.2, -0.4], rows)
        assert decide(judge_of(raw), judged_of(waves))[0] == expected


@pytest.mark.parametrize(("lead", "expected"), [(SMALLEST_LEAD - 1, True), (SMALLEST_LEAD + 1, False), (-50.0, True)])
def test_the_row_before_does_as_well_unless_the_simulation_leads_by_enough(lead, expected):
    """Residuals of a size that gives a lead of Schwarz's criterion, which is twenty."""
    raw = np.cumsum(RNG.standard_normal(80))
    given = np.column_stack([raw[:-1], np.ones(79)])
    missed = raw[1:] - given @ np.linalg.lstsq(given, raw[1:])[0]
    rows = 79
    # Two numbers of the map, one constant and one start of the simulation.
    gaps = np.sqrt((missed**2).mean()) * np.exp(-lead / (2 * rows)) * np.ones(80)
    assert past_does_as_well(judge_of(raw), judged_of(gaps)) == expected


def test_few_rows_say_nothing_of_the_row_before():
    assert not past_does_as_well(judge_of(np.arange(12.0)), judged_of(np.ones(12)))


def test_a_balance_of_reactions_accepts_positive_constants_alone():
    rates = Balance.apart(["x", "y"])
    reactions = Balance(rates.titles, rates.unknowns, rates.rates, positive=True)
    for constants, is_positive in (((1.0, 2.0), True), ((1.0, -2.0), False), ((0.0, 2.0), False)):
        formulas = [formula_of(each) for each in constants]
        assert reactions.accepts(formulas) == is_positive and rates.accepts(formulas)


def test_required_terms_are_in_each_rate_or_in_one_flow():
    rates = Balance.apart(["x", "y"])
    flows = Balance.flows(["a", "b"], np.array([[1.0, -1.0], [0.0, 1.0]]))
    both, one = [formula_of(1.0, terms=("x",))] * 2, [formula_of(1.0, terms=("x",)), formula_of(1.0, terms=("y",))]
    assert rates.accepts(both, ["x"]) and not rates.accepts(one, ["x"])
    assert flows.accepts(one, ["x", "y"]) and not flows.accepts(one, ["z"])
