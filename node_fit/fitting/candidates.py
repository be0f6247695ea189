"""The table of candidates: fits with other options that are tried where the first one is not good, by kinds of record.

A new idea is a row of a block below, and a test. `scripts/docs/candidates.py` writes the table into the docs.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..data.dataset import Dataset
from ..data.facts import Facts
from ..model.ensemble import Ensemble
from ..model.fields.known import Sparse
from ..model.fields.network import MLP, Linear, LogTimeMLP, Polynomial
from ..model.initial_state.rule import First
from ..model.initial_state.trained import Encoder, Fitted
from ..model.make_model import MakeStart, is_equations_alone, is_plain, made_of, says
from ..model.observation import NetworkReadout
from ..objectives.objective import Penalty
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..options.options import Effort, Options, Training
from ..options.recipes import DEFAULT_RECIPE, Plan, Recipe, growing_windows
from .judge import CONTENT, SPARSE_EQUATIONS, Judged, count_hidden, find_best, has_few_values, reads_past
from .mechanisms import may_be_mechanism
from .problem import has_enough_rows
from .resolve import (
    ENCODER_ROWS,
    LONG_RECORD,
    MAX_FITTED_STARTS,
    RIDGES,
    STARTS_OF_FEW_ROWS,
    WINDOWS,
    fitted_start,
)
from .result import Fit

FIRST_ATTEMPT = "as chosen"
# Variables up to which equations and polynomials are tried.
MOST_VARIABLES = 3
# The prior on nonlinear coefficients, before their own are found.
POLYNOMIAL_RIDGE = 1.0
# The prior on a network beside a linear path: its weight for each fitted value, and at the most; and the factors of a
# weaker and of a stronger one.
NETWORK_RIDGE, WEAKER_PRIOR, STRONGER_PRIOR = (3e-4, 4.5), 0.15, 3.0
# The prior on the network where data without noise are fitted well: a linear system gets a linear field.
BESIDE_RIDGE = 1e-4
# The share of a trajectory's rows that its start may be fitted to, and the most rows.
GIVEN_SHARE, GIVEN_ROWS = 0.25, 10
# Units of the network beside a linear path.
NARROW_WIDTH = 16
# Hidden states that are added at a time to a driven record's model, how often, and those behind a readout by a network.
MORE_HIDDEN, MOST_ADDED, HIDDEN_BEHIND = 2, 2, 2
# Rows that tell the start of a hidden state in short trajectories, of which these are a quarter at the most.
FIRST_ROWS = 4
# Rows of the windows of records without inputs whose starts are read from past rows: the first there are enough of.
WINDOWS_AFTER_PAST = (64, 32, 16)
# Starts of known equations, the first from the constants that were given.
KNOWN_STARTS = {"normal": 5, "thorough": 32}
# Rows of a window that tell its start: from a noisy first row, errors grow whatever the equations. On training rows of
# Lorenz's system with 1 % noise, the true equations had an NRMSE of 0.36 from one row, 0.24 from 10 and 0.07 from 20.
CHAOTIC_START = 20


@dataclass(frozen=True)
class Race:
    """What has been tried of a record, from which candidates are made.

    - `options`: those that were given. `effort`: how much is tried.
    - `tried`: the attempts, that with the options as they were chosen first.
    - `horizon`: rows of the windows that are fitted of a chaotic record; None of others.
    """

    options: Options
    effort: Effort
    tried: tuple[Judged, ...]
    horizon: int | None = None

    @cached_property
    def best(self) -> Judged:
        return find_best(self.tried)

    @property
    def first(self) -> Fit:
        """The fit with the options as they were chosen."""
        return self.tried[0].fit

    @property
    def train(self) -> Dataset:
        return self.first.data["train"]

    @property
    def is_chaotic(self) -> bool:
        return self.horizon is not None

    @property
    def has_direct_readout(self) -> bool:
        """Whether all that is measured are states, none of which is an angle."""
        return says(self.options.observation, "is_direct", False) and not self.train.angles

    @property
    def measures_all(self) -> bool:
        """Whether all states are measured as far as is known, and none is an angle."""
        hidden = self.options.hidden not in ("auto", 0, ())
        return self.has_direct_readout and not (hidden or count_hidden(self.first) or count_hidden(self.best.fit))

    @property
    def has_few_variables(self) -> bool:
        """Whether there are few enough states and inputs for equations, and all states are measured."""
        return len(self.train.states) + len(self.train.inputs) <= MOST_VARIABLES and self.measures_all

    @property
    def may_hide_states(self) -> bool:
        """Whether a state that nobody measured may be what the best fit lacks, and the user has left that open."""
        is_left_open = self.options.hidden == "auto" and self.options.start == "auto"
        return is_left_open and self.has_direct_readout and not self.best.is_content

    @property
    def may_have_more_states(self) -> bool:
        """Whether the best model, whose starts are read from past rows, may need more hidden states than a linear model
        tells of.

        None were asked for, more than noise is left, it does not overfit, and those added last have helped.
        """
        best, added = self.best, [each for each in self.tried if each.attempt.name.endswith(MORE_STATES)]
        if self.options.hidden != "auto" or len(added) >= MOST_ADDED or not reads_past(best.fit):
            return False
        helped = added[-1] is best if added else best.attempt.name in (FIRST_ATTEMPT, NETWORK_READOUT, PAST_ROWS)
        done = best.attempt.verdict in ("noise-limited", "unfinished") or best.attempt.is_overfitted
        return helped and not done

    @property
    def may_hold_elsewhere(self) -> bool:
        """Whether few variables, which the first network has fitted well, may have a model that holds from other
        starts."""
        field, last = self.options.field, self.tried[-1].attempt.name
        network = callable(field) and made_of(field) is MLP and not reads_past(self.first)
        few = self.has_few_variables and has_enough_rows(self.train)
        return last in (FIRST_ATTEMPT, SPARSE_EQUATIONS) and network and few


@dataclass(frozen=True)
class Candidate:
    """A way to fit.

    - `name`: what an attempt with it is called. `keys`: the keys of the config that it changes.
    - `options`: the complete options, from what was tried; None where it does not apply.
    - `what`, `when`: what it does, and when it applies, in words.
    """

    name: str
    keys: tuple[str, ...]
    options: Callable[[Race], Options | None]
    what: str
    when: str


def begin_at_derivatives(race: Race) -> Options | None:
    """Equations alone from constants that fit the derivatives of the data, where all states are measured."""
    options = race.options
    alone = is_equations_alone(options.field) and not says(options.field, "is_sought", False)
    if not alone or count_hidden(race.first) or race.best.is_content:
        return None
    optimizer = options.optimizer or LevenbergMarquardt()
    return replace(options, recipe=Recipe({**DEFAULT_RECIPE.stages, "main": Plan(optimizer=optimizer)}))


def begin_at_several_constants(race: Race) -> Options | None:
    """Known equations from several constants, and starts that are fitted."""
    options, fit = race.options, race.first
    if options.restarts not in ("auto", 1) or isinstance(fit.model, Ensemble) or not fit.model.constants():
        return None
    start = fitted_start(Facts.of(race.train, fit.data.get("validation")))
    start = start if options.start == "auto" else options.start
    return replace(options, start=start, restarts=KNOWN_STARTS[race.effort], optimizer=LevenbergMarquardt())


def search_equations(race: Race) -> Options | None:
    """Equations of few terms in few variables, as `discover` finds them; of chaos, in windows."""
    options = race.options
    if not options.discover or not race.has_few_variables or not has_enough_rows(race.train):
        return None
    if not race.is_chaotic and begins_with_equations(options, race.train):
        return None
    from_rows = options.start == "auto" and race.is_chaotic
    start = functools.partial(Fitted, given=CHAOTIC_START) if from_rows else options.start
    return replace(of_few_terms(options), start=start)


def begins_with_equations(options: Options, train: Dataset) -> bool:
    """Whether equations of few terms come before a network: all variables of a short record are measured, and nothing
    else was asked for than a network."""
    field = options.field
    few = has_few_values(train) and len(train.states) + len(train.inputs) <= MOST_VARIABLES
    plain = callable(field) and made_of(field) is MLP and is_plain(field) and options.discover
    measured = says(options.observation, "is_direct", False) and options.hidden in ("auto", 0, ())
    if not (few and plain and measured and has_enough_rows(train)):
        return False
    # Inputs over many rows are learnt in windows, and rows over decades of time by a field of the logarithm.
    facts = Facts.of(train)
    whole = facts.longest < LONG_RECORD * WINDOWS[-1] and not facts.decades and not train.angles
    # Equations of motion have come first where the columns are a mechanism's.
    return whole and not may_be_mechanism(options, train)


def of_few_terms(options: Options) -> Options:
    """The options of equations that are found, fitted to whole trajectories."""
    changed = replace(options, field=Sparse, optimizer=LevenbergMarquardt(), restarts=1)
    return replace(changed, training=Training(window=None))


def put_beside_linear(race: Race) -> Options | None:
    """A small network beside a linear path, which goes on beyond the data, where the first, large one fits well."""
    if not race.may_hold_elsewhere or not race.best.is_content:
        return None
    field = functools.partial(MLP, linear=True)
    return replace(race.options, field=field, penalty=set_ridge(race.options, BESIDE_RIDGE), restarts=1)


def read_by_network(race: Race) -> Options | None:
    """What is measured may be any function of hidden states, such as a speed without its direction."""
    best = race.best
    is_left_open = race.options.hidden == "auto" and race.has_direct_readout
    if not is_left_open or best.is_content or best.attempt.is_overfitted:
        return None
    return replace(race.options, observation=NetworkReadout, hidden=HIDDEN_BEHIND)


def add_hidden_states(race: Race) -> Options | None:
    """The best model with more hidden states: what is not linear may hide them from a linear model."""
    if not race.may_have_more_states:
        return None
    options, before = race.options, race.best.fit.options
    assert isinstance(before.penalty, Penalty)
    penalty = set_ridge(options, float(before.penalty.ridge))
    if not race.train.is_driven:
        options = replace(options, start=before.start, training=Training(window=before.training.window))
    hidden = count_hidden(race.best.fit) + MORE_HIDDEN
    return replace(options, observation=before.observation, hidden=hidden, penalty=penalty)


def read_past_rows(race: Race) -> Options | None:
    """Windows whose starts are read from the rows before them, which tell of states that nobody measured, if linear
    models ask for any: as of records that inputs drive."""
    train = race.train
    if not race.may_hide_states or train.is_driven or train.events is not None:
        return None
    window = next((rows for rows in WINDOWS_AFTER_PAST if train.lengths.max() >= LONG_RECORD * rows), None)
    start = functools.partial(Encoder, rows=ENCODER_ROWS, before=True)
    return None if window is None else replace(race.options, start=start, training=Training(window=window))


def hide_fitted_state(race: Race) -> Options | None:
    """A hidden state of short trajectories whose start is fitted, and a small network beside a linear path.

    Few weights follow no noise, and a start that is fitted to some rows has less of it than one that is read from them.
    """
    lengths, before = race.train.lengths, [each for each in race.tried if each.attempt.name.endswith(FITTED)]
    is_short = len(lengths) <= MAX_FITTED_STARTS and lengths.max() < LONG_RECORD * WINDOWS[-1]
    if not race.may_hide_states or not is_short or (before and before[-1] is not race.best):
        return None
    return replace(
        race.options,
        hidden=count_hidden(race.best.fit) + 1,
        field=functools.partial(MLP, width=NARROW_WIDTH, depth=1, linear=True),
        start=functools.partial(Fitted, given=count_given(race.train)),
        optimizer=LevenbergMarquardt(),
        penalty=set_ridge(race.options, RIDGES[0] * int(race.train.mask.sum())),
        restarts=STARTS_OF_FEW_ROWS,
    )


def hide_state(race: Race) -> Options | None:
    """A hidden state whose start is found, or follows from inputs that do not change, such as a dose."""
    alone = not count_hidden(race.best.fit)
    return replace(race.options, hidden=1) if alone and race.may_hide_states else None


def read_first_rows(race: Race) -> Options | None:
    """A hidden state whose start is read from the first rows: a speed, or what was there before the first one."""
    rows = min(FIRST_ROWS, int(race.train.lengths.min()) // FIRST_ROWS)
    if rows < 2 or not race.may_hide_states:
        return None
    hidden = max(count_hidden(race.best.fit), 1)
    return replace(race.options, hidden=hidden, start=functools.partial(Encoder, rows=rows))


def hide_another_state(race: Race) -> Options | None:
    """The best fit with a hidden state, with one more."""
    best = race.best
    name = best.attempt.name
    if HIDDEN_STATE not in name or name.endswith(FITTED) or not race.may_hide_states:
        return None
    start = best.fit.options.start if TOLD_BY_ROWS in name else "auto"
    return replace(race.options, hidden=count_hidden(best.fit) + 1, start=start)


def fit_linear(race: Race) -> Options | None:
    """A linear field, which is quick, where the first fit is not good."""
    is_good = race.first.diagnose().kind in CONTENT and not race.tried[0].runs_away
    if not race.measures_all or is_good:
        return None
    start = choose_start(race.options, race.train) if has_few_values(race.train) else race.options.start
    return replace(race.options, field=Linear, start=start, restarts=1)


def grow_windows(race: Race) -> Options | None:
    """A linear path and a small network with a prior, in windows that grow."""
    if not race.measures_all:
        return None
    share, most = NETWORK_RIDGE
    return replace(
        fit_as_windows_grow(race, derivatives=False),
        field=functools.partial(MLP, width=NARROW_WIDTH, depth=1, linear=True),
        start=choose_start(race.options, race.train),
        penalty=set_ridge(race.options, min(share * int(race.train.mask.sum()), most)),
        restarts=1,
    )


def grow_windows_again(race: Race, *, stronger: bool) -> Options | None:
    """Windows that grow with a stronger prior, if the last such fit is overfitted; with a weaker one, if none was."""
    before, given = [each for each in race.tried if each.attempt.name.startswith(GROWING)], race.options.penalty
    if not before or not isinstance(given, Penalty) or not isinstance(given.ridge, str):
        return None
    overfits = [each.attempt.is_overfitted for each in before]
    if not (overfits[-1] if stronger else not any(overfits)):
        return None
    last = before[-1].fit.options.penalty
    assert isinstance(last, Penalty) and isinstance(last.ridge, float)
    changed = grow_windows(race)
    ridge = last.ridge * (STRONGER_PRIOR if stronger else WEAKER_PRIOR)
    return changed and replace(changed, penalty=replace(last, ridge=ridge))


def fit_polynomial(race: Race, *, degree: int) -> Options | None:
    """A polynomial of few variables, whose start is fitted where rows are few."""
    if not race.has_few_variables:
        return None
    return replace(
        fit_as_windows_grow(race, derivatives=True),
        field=functools.partial(Polynomial, degree=degree),
        start=choose_start(race.options, race.train),
        penalty=set_ridge(race.options, POLYNOMIAL_RIDGE),
        restarts=1,
    )


def fit_windows(race: Race) -> Options | None:
    """The field that was asked for, in windows of a chaotic record."""
    return replace(race.options, training=Training(window=None), restarts=1)


def fit_as_windows_grow(race: Race, *, derivatives: bool) -> Options:
    """The options with windows that grow; or with whole trajectories of few rows, or of a chaotic record's windows."""
    whole = race.is_chaotic or has_few_values(race.train)
    recipe = race.options.recipe if whole else growing_windows(race.train, derivatives=derivatives)
    return replace(race.options, recipe=recipe, optimizer=LevenbergMarquardt(), training=Training(window=None))


def choose_start(options: Options, train: Dataset) -> MakeStart | str:
    """The rule that was asked for; else a fitted start where rows are few, since the first of them is noisy, and
    elsewhere one that windows may begin with."""
    if options.start != "auto":
        return options.start
    return functools.partial(Fitted, given=count_given(train)) if has_few_values(train) else First


def count_given(train: Dataset) -> int:
    """Rows of a new trajectory to which its start is fitted: they do not count, so that most of a short one do."""
    return int(np.clip(np.median(train.lengths) * GIVEN_SHARE, 1, GIVEN_ROWS))


def set_ridge(options: Options, weight: float) -> Penalty:
    """The penalty that was asked for, with a weight of the prior that was left open."""
    assert isinstance(options.penalty, Penalty)
    given = options.penalty.ridge
    return replace(options.penalty, ridge=weight if isinstance(given, str) else given)


GROWING, PAST_ROWS, MORE_STATES = "growing windows", "windows after past rows", "more hidden states"
NETWORK_READOUT, HIDDEN_STATE = "readout by a network", "hidden state"
TOLD_BY_ROWS, FITTED = "told by first rows", "fitted starts"
SPARSE_IN_WINDOWS, BESIDE_LINEAR = f"{SPARSE_EQUATIONS} in windows", "small network beside a linear path"

NOT_GOOD = "the best fit is not good"
OPEN = "`hidden` and `start` are left open"
OF_KNOWN = (
    Candidate(
        "derivatives first",
        ("recipe",),
        begin_at_derivatives,
        "constants that fit the derivatives of the data come first",
        f"all states are measured, and {NOT_GOOD}",
    ),
    Candidate(
        "several starts",
        ("restarts", "start"),
        begin_at_several_constants,
        "five starts, 32 with `effort=thorough`: the constants and hidden starts that simulate the data best, of "
        "thousands within a factor of a hundred of those given, and of the size of the data (differential evolution)",
        f"{NOT_GOOD}, or states are hidden",
    ),
)
FEW_TERMS = Candidate(
    SPARSE_EQUATIONS,
    ("field",),
    search_equations,
    "equations of few terms ([Find the equations](discover.md)), fitted from the constants that were found",
    "at most three measured states and inputs, with 12 rows or more of each",
)
BESIDE = Candidate(
    BESIDE_LINEAR,
    ("field.linear", "penalty.ridge"),
    put_beside_linear,
    "a network of 16 units beside a linear path, which goes on beyond the data",
    "at most three variables, the first network fits well, and no equations are found",
)
MORE_HIDDEN_STATES, YET_MORE_STATES = (
    Candidate(
        f"{often}{MORE_STATES}",
        ("hidden",),
        add_hidden_states,
        "the best model with two more hidden states, of which a linear model may not tell",
        f"starts are read from past rows, the best fit leaves more than noise and is not overfitted{last}",
    )
    for often, last in (("", ""), ("yet ", "; the first two have helped"))
)
READOUT = Candidate(
    NETWORK_READOUT,
    ("observation", "hidden"),
    read_by_network,
    "two hidden states behind a readout by a network",
    f"{NOT_GOOD}, nor overfitted",
)
AFTER_PAST_ROWS = Candidate(
    PAST_ROWS,
    ("hidden", "start", "training.window"),
    read_past_rows,
    "windows of 64, 32 or 16 rows, whose starts are read from the ten rows before, with as many hidden states as "
    "linear models ask for",
    f"{NOT_GOOD}, {OPEN}, and a trajectory has three windows",
)
UNSEEN = (
    Candidate(
        f"{HIDDEN_STATE}, {FITTED}",
        ("hidden", "start", "field.width", "optimizer"),
        hide_fitted_state,
        "a hidden state, with starts that are fitted to a quarter of the rows (ten at the most), and a network of 16 "
        "units beside a linear path, by Levenberg and Marquardt's steps, three times",
        f"{NOT_GOOD}, {OPEN}, and there are at most 100 trajectories of fewer than 192 rows",
    ),
    Candidate(
        f"another {HIDDEN_STATE}, {FITTED}",
        ("hidden", "start", "field.width", "optimizer"),
        hide_fitted_state,
        "the same with one more",
        f"the first of these has helped, and {NOT_GOOD}",
    ),
    Candidate(
        HIDDEN_STATE,
        ("hidden",),
        hide_state,
        "a hidden state whose start is found, or follows from inputs such as a dose",
        f"{NOT_GOOD}, and {OPEN}",
    ),
    Candidate(
        f"{HIDDEN_STATE} {TOLD_BY_ROWS}",
        ("hidden", "start"),
        read_first_rows,
        "a hidden state whose start is read from the first four rows, as a speed",
        f"{NOT_GOOD}, {OPEN}, and trajectories have eight rows or more",
    ),
    Candidate(
        f"another {HIDDEN_STATE}",
        ("hidden", "start"),
        hide_another_state,
        "the best fit with one more",
        f"a hidden state has helped, and {NOT_GOOD}",
    ),
)
LINEAR = Candidate("linear", ("field",), fit_linear, "a linear field", "the first fit is not good")
GROWING_WINDOWS = (
    Candidate(
        GROWING,
        ("training.window", "field.width"),
        grow_windows,
        "a linear path and a network of 16 units in windows of 10, 25 and 62 rows (at the most half a trajectory), "
        "then whole trajectories, by Levenberg and Marquardt's steps",
        "all states are measured",
    ),
    *(
        Candidate(
            f"{GROWING}, {prior} prior",
            ("penalty.ridge",),
            functools.partial(grow_windows_again, stronger=stronger),
            f"the same with a prior {factor}",
            when,
        )
        for prior, stronger, factor, when in (
            ("stronger", True, "three times stronger", "the validation error is over 1.5 times that of training"),
            ("yet stronger", True, "again three times stronger", "the same"),
            ("weaker", False, "of .15 of the weight", "no such fit was overfitted"),
        )
    ),
)
POLYNOMIALS = tuple(
    Candidate(
        name,
        ("field",),
        functools.partial(fit_polynomial, degree=degree),
        f"a polynomial of degree {degree}; coefficients that the data do not ask for become zero",
        "at most three measured states and inputs",
    )
    for name, degree in (("quadratic", 2), ("cubic", 3))
)
IN_WINDOWS = Candidate(
    "windows", ("training.window",), fit_windows, "the field that was asked for", "the record is chaotic"
)

# The candidates of each kind of record, in the order in which they are tried.
CANDIDATES_BY_KIND: dict[str, tuple[Candidate, ...]] = {
    "known equations": OF_KNOWN,
    "a chaotic record, in windows of 50 rows": (replace(FEW_TERMS, name=SPARSE_IN_WINDOWS), *POLYNOMIALS, IN_WINDOWS),
    "a long record with inputs, or whose starts are read from past rows": (
        *(READOUT, MORE_HIDDEN_STATES, YET_MORE_STATES, FEW_TERMS, LINEAR),
        *(*GROWING_WINDOWS, *POLYNOMIALS),
    ),
    "up to three states": (
        *(FEW_TERMS, BESIDE, AFTER_PAST_ROWS, MORE_HIDDEN_STATES, YET_MORE_STATES, *UNSEEN),
        *(LINEAR, *GROWING_WINDOWS, *POLYNOMIALS),
    ),
    "fewer than 200 values": (
        *(FEW_TERMS, AFTER_PAST_ROWS, MORE_HIDDEN_STATES, YET_MORE_STATES, *UNSEEN),
        *(*POLYNOMIALS, *GROWING_WINDOWS, LINEAR),
    ),
    "more states": (
        *(FEW_TERMS, LINEAR, *GROWING_WINDOWS),
        *(AFTER_PAST_ROWS, MORE_HIDDEN_STATES, YET_MORE_STATES, *UNSEEN, *POLYNOMIALS),
    ),
}


def candidates_of(race: Race) -> Sequence[Candidate]:
    """The candidates for a kind of record, in the order in which they are tried."""
    field, (known, chaotic, driven, small, few, large) = race.options.field, CANDIDATES_BY_KIND.values()
    # Where rows span decades of time, any other field needs an implicit method, of which a step takes many seconds.
    if not callable(field) or made_of(race.first.options.field) is LogTimeMLP:
        return ()
    if says(field, "has_equations", False):
        return known
    if made_of(field) is not MLP or not is_plain(field):
        return ()
    if race.is_chaotic:
        return chaotic
    if reads_past(race.first):
        return driven
    if has_few_values(race.train):
        return few
    return small if len(race.train.states) <= MOST_VARIABLES else large
