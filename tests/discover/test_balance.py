"""Where functions stand in the rates of states: apart, in known equations, and as flows and reactions."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.discover.balance import Balance, conserving, reacting
from node_fit.discover.formulas import Formula, polynomial, read_tape, sum_of
from node_fit.discover.judging import Judge
from node_fit.discover.search import Source, Vocabulary, search_source
from node_fit.discover.smoothing import smooth_record
from node_fit.discover.views import make_views

QUICK = {"symbolic": False, "effort": "quick", "resamples": 5}


def record(rates, start, states, length=60.0, rows=121, noise=0.02):
    ts = np.linspace(0, length, rows)
    ys = solve_ivp(rates, (0, length), start, t_eval=ts, rtol=1e-9, atol=1e-9).y.T
    ys = ys + noise * ys.std(axis=0) * np.random.default_rng(0).standard_normal(ys.shape)
    return nf.Dataset.from_arrays(ts, ys, states=states)


def epidemic(t, y):
    caught, healed = 0.0005 * y[0] * y[1], 0.15 * y[1]
    return [-caught, caught - healed, healed]


def test_a_flow_leaves_one_state_and_enters_another():
    balance = conserving(["S", "I", "R", "dose"], ["S + I + R"])
    assert balance.titles == ("S -> I", "S -> R", "I -> R", "dose")
    written = balance.write(["0.5*S*I", "0", "0.1*I + 0.2", "-1*dose"], ["S", "I", "R", "dose"])
    assert written["S"] == "-0.5*S*I" and written["R"] == "0.1*I + 0.2" and written["dose"] == "-1*dose"
    point = [3.0, 2.0, 1.0, 0.7]
    rates = read_tape(list(written.values()), ["S", "I", "R", "dose"])(point)
    assert rates == pytest.approx([-3.0, 3.0 - 0.4, 0.4, -0.7]) and sum(rates[:3]) == pytest.approx(0)


def test_a_reaction_is_a_constant_times_what_reacts():
    balance = reacting(["A", "B"])
    flows = dict(zip(balance.titles, zip(balance.shares.tolist(), balance.offered, strict=True), strict=True))
    change, terms = flows["A -> B"]
    assert change == [-1, 1] and {term.text for term in terms} == {"A", "A**2", "A*B"}
    assert flows["A + A -> B"][0] == [-2, 1] and [term.text for term in flows["A + A -> B"][1]] == ["A**2"]
    assert not any(sum(change) for change in reacting(["A", "B"], ["A + B"]).shares)
    assert "A + A -> B + B" not in flows, "it is A -> B with A**2, and half the constant"


@pytest.mark.parametrize(
    ("sums", "sentence"),
    [(["S + Q"], "must be a sum of at least two states"), (["S + I", "I + R"], "'I' occurs twice")],
)
def test_a_wrong_sum_is_a_sentence(sums, sentence):
    with pytest.raises(ValueError, match=sentence):
        conserving(["S", "I", "R"], sums)


def test_terms_of_known_equations_are_written_in_their_place():
    balance = Balance(("mu",), ("mu",), ("-y*mu*X", "mu*X - 0.05*X"))
    written = balance.write(["c1*S - 0.5"], ["S", "X"])
    assert written == {"S": "-y*(c1*S - 0.5)*X", "X": "(c1*S - 0.5)*X - 0.05*X"}


def test_known_constants_absorb_the_terms_that_move_rates_as_they_do():
    values = np.random.default_rng(0).uniform(0.5, 2.0, (40, 2))
    terms, given = polynomial(["x", "v"], 2), values[:, :1]

    def absorbed(**rates):
        balance = Balance(("f", "k", "b"), ("f", "k", "b"), tuple(rates.values()), constants={"k": 1.0, "b": 0.5})
        return balance.absorb(terms, ["x", "v"], values, given)

    assert absorbed(x="-k*x + f", v="b*v") == [{"x"}]
    assert absorbed(x="-k*(x - b) + f", v="v") == [{"1", "x"}]
    assert absorbed(x="-k*x + v*f", v="b*f") == [set()], "f is in both rates, and no constant is"
    assert absorbed(x="-k*x*v + x*f", v="b*v") == [{"v"}]


def test_what_a_network_learnt_of_a_known_term_is_given_back_to_its_constant():
    """The rate is -x - x^3; the network's f has 0.3 of the first term, and k only 0.7."""
    data = record(lambda t, y: [-y[0] - y[0] ** 3], (2.0,), ["x"], length=4.0, rows=60)
    read = smooth_record(data.ts[0], data.ys[0], data.us[0])
    x = read.values[:, 0]
    read = replace(read, rates=(-0.3 * x - x**3)[:, None])
    judge = Judge([read], ["x"], [], Balance(("f", "k"), ("f", "k"), ("-k*x + f",), constants={"k": 0.7}))
    source = Source(judge, make_views([read], weak=False), False, ["x"], False, [])
    found = search_source(source, Vocabulary(("cubic",)), False, 5, "quick", 0)
    assert found.ranked[0].equations == {"x": "-k*x + c1*x**3"} and found.shares["f"] == {"x**3": 1.0}
    assert found.ranked[0].constants == pytest.approx({"k": 1.0, "c1": -1.0}, rel=0.05)
    kept = search_source(source, Vocabulary(("cubic",), required=["x"]), False, 0, "quick", 0)
    assert "c1*x" in kept.ranked[0].equations["x"], "the user may ask for the term"


@pytest.mark.slow
def test_the_rates_of_an_epidemic_are_found_with_its_people_conserved():
    """Without the sum, the four rates have four constants; with it, there are two."""
    data = record(epidemic, (990, 10, 0), list("SIR"))
    found = nf.discover(data, conserved=["S + I + R"], libraries=("linear", "quadratic"), **QUICK)
    assert found.explained and found.shares.keys() == {"S -> I", "I -> R"}
    assert list(found.found.constants.values()) == pytest.approx([0.0005, 0.15], rel=0.02)
    point = dict(zip("SIR", (600.0, 300.0, 100.0), strict=True)) | found.found.constants
    rates = read_tape(list(found.found.equations.values()), list(point))(list(point.values()))
    assert sum(rates) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_reactions_are_found_by_mass_action():
    """A + B turn into C, which falls apart again: of the 81 reactions between three species, two."""

    def react(t, y):
        forth, back = 0.8 * y[0] * y[1], 0.3 * y[2]
        return [back - forth, back - forth, forth - back]

    data = record(react, (1.0, 0.7, 0.0), list("ABC"), length=8.0, rows=60)
    found = nf.discover(data, mass_action=True, **QUICK)
    assert found.explained and found.shares.keys() == {"A + B -> C", "C -> A + B"}
    assert sorted(found.found.constants.values()) == pytest.approx([0.3, 0.8], rel=0.05)
    with pytest.raises(ValueError, match="mass_action chooses the terms"):
        nf.discover(data, mass_action=True, libraries=("linear",))


@pytest.mark.long
@pytest.mark.slow
def test_of_many_states_all_terms_are_tried():
    """Five states have more terms than one equation may hold."""
    states = ["alpha", "beta", "gamma", "delta", "epsilon"]

    def chain(t, y):
        flows = [0.5, 0.3 * y[0], 0.5 * y[1], 0.2 * y[2], 0.3 * y[3], 0.2 * y[4]]
        return [into - out for into, out in itertools.pairwise(flows)]

    data = record(chain, (2, 1.5, 1.2, 1.8, 2), states, length=10.0, rows=60, noise=0.0)
    assert nf.discover(data, **QUICK).explained


@pytest.mark.long
@pytest.mark.slow
def test_stiff_reactions_over_decades_are_found():
    """Robertson's, whose constants and times span nine decades: 0.04, 1e4 and 3e7."""
    path = Path(__file__).parents[2] / "data" / "robertson.csv"
    data = nf.read_table(path, time="t", trajectory="trajectory", states=["y1", "y2", "y3"])
    found = nf.discover(data, mass_action=True, **QUICK)
    assert found.explained and not found.rivals
    assert {name: set(terms) for name, terms in found.shares.items()} == {
        "y1 -> y2": {"y1"}, "y2 -> y1": {"y2*y3"}, "y2 -> y3": {"y2**2"},
    }  # fmt: skip
    assert list(found.found.constants.values()) == pytest.approx([0.04, 1e4, 3e7], rel=1e-4)


def test_a_system_of_no_terms_is_judged_too():
    data = record(lambda t, y: [-y[0]], (1.0,), ["x"], rows=40)
    judge = Judge([smooth_record(data.ts[0], data.ys[0], data.us[0])], ["x"], [])
    rest, decay = Formula((), (), (), 0), sum_of(polynomial(["x"], 1)[1:], [-0.9])
    best, worst = judge.judge([(rest,), (decay,)])
    assert best.formulas[0].terms == ("x",) and worst.formulas == (rest,) and worst.error > best.error
