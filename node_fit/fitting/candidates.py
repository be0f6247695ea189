"""The table of candidates, by kind of record: fits with other options to try if the first fit is not good.

To add a candidate, add a row to a block below, and a test. `scripts/docs/candidates.py` writes the table into the docs.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..data.dataset import Dataset
from ..data.facts import Facts, has_motion
from ..data.inputs import kinds_by_input
from ..discover.individuals import Individuals, may_differ
from ..discover.search import Vocabulary, search_field
from ..model.ensemble import Ensemble
from ..model.fields.known import Known, Sparse
from ..model.fields.network import MLP, Linear, LogTimeMLP, Polynomial, SecondOrder
from ..model.initial_state.rule import First
from ..model.initial_state.trained import Encoder, Fitted
from ..model.make_model import MakeStart, is_equations_alone, is_plain, maker_class, trait_of
from ..model.observation import NetworkReadout
from ..objectives.objective import Penalty
from ..optimizers.levenberg_marquardt import LevenbergMarquardt
from ..options.options import Effort, Options, Training
from ..options.recipes import DEFAULT_RECIPE, Plan, Recipe, growing_windows, without_derivatives
from ..sysid.feedthrough import estimate_feedthrough
from .judge import CONTENT, SPARSE_EQUATIONS, Judged, count_hidden, find_best, has_few_values, reads_past
from .long_records import LINEAR_SYSTEM, comes_first, fit_long_record
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
    reads_inputs,
)
from .result import Fit

FIRST_ATTEMPT = "as chosen"
# Maximum number of variables for which equations and polynomials are tried; for equations of driven records that come
# before a network, the second, since steps of an input show the terms well.
MOST_VARIABLES, MOST_DRIVEN_VARIABLES = 3, 4
# Initial weight of the prior on nonlinear coefficients, before each gets its own.
POLYNOMIAL_RIDGE = 1.0
# Weight of the prior on a network beside a linear path, per fitted value and at most; factors for a weaker and for a
# stronger prior.
NETWORK_RIDGE, WEAKER_PRIOR, STRONGER_PRIOR = (3e-4, 4.5), 0.15, 3.0
# Weight of the prior on the network if noise-free data are fitted well, so that a linear system gets a linear field.
BESIDE_RIDGE = 1e-4
# Fraction of a trajectory's rows to which its initial state can be fitted, and their maximum number.
GIVEN_SHARE, GIVEN_ROWS = 0.25, 10
# The maximum for equations of motion: ten noisy rows of a position leave an error in its velocity that later rows show.
MOTION_ROWS = 40
# Maximum number of rows of a trajectory that is fitted as a whole before a network.
MOST_WHOLE_ROWS = 2_000
# Number of units of the network beside a linear path.
NARROW_WIDTH = 16
# Hidden states added at a time to a driven record's model, how often they are added, and hidden states behind a network
# readout.
MORE_HIDDEN, MOST_ADDED, HIDDEN_BEHIND = 2, 2, 2
# Maximum number of rows used to estimate a hidden state's initial value; at most a quarter of a short trajectory.
FIRST_ROWS = 4
# Window sizes for records without inputs whose starts are read from past rows; the first with enough windows is used.
WINDOWS_AFTER_PAST = (64, 32, 16)
# Number of starts of known equations, the first from the specified constants.
KNOWN_STARTS = {"normal": 5, "thorough": 32}
# Rows used to estimate a window's initial state; one noisy row is not enough for chaos. On training rows of Lorenz's
# system with 1 % noise, the true equations had an NRMSE of 0.36 from one row, 0.24 from 10 and 0.07 from 20.
CHAOTIC_START = 20


@dataclass(frozen=True)
class Race:
    """The attempts made on a record, from which candidates are derived.

    - `options`: the user's options. `effort`: how many candidates are tried.
    - `made`: the attempts of the race; the first has the automatically chosen options. `openings`: those before it.
    - `horizon`: rows of the fitted windows of a chaotic record; None for others.
    - `individuals`: equations with constants of each trajectory, if a search found these alone.
    """

    options: Options
    effort: Effort
    made: tuple[Judged, ...]
    horizon: int | None = None
    openings: tuple[Judged, ...] = ()
    individuals: Individuals | None = None

    @cached_property
    def tried(self) -> tuple[Judged, ...]:
        """All attempts, the one with the automatically chosen options first."""
        return (self.made[0], *self.openings, *self.made[1:])

    @cached_property
    def best(self) -> Judged:
        return find_best(self.tried)

    @property
    def first(self) -> Fit:
        """The fit with the automatically chosen options."""
        return self.made[0].fit

    @property
    def train(self) -> Dataset:
        return self.first.data["train"]

    @property
    def is_chaotic(self) -> bool:
        return self.horizon is not None

    @property
    def has_direct_readout(self) -> bool:
        """Whether only states are measured, and none is an angle."""
        return trait_of(self.options.observation, "is_direct", False) and not self.train.angles

    @property
    def measures_all(self) -> bool:
        """Whether all states are measured, as far as is known, and none is an angle."""
        hidden = self.options.hidden not in ("auto", 0, ()) or self.readout is not self.options.observation
        return self.has_direct_readout and not (hidden or count_hidden(self.first) or self.hidden_of_best)

    @property
    def has_few_variables(self) -> bool:
        """Whether states and inputs are few enough for equations, and all states are measured."""
        return len(self.train.states) + len(self.train.inputs) <= MOST_VARIABLES and self.measures_all

    @property
    def may_have_individuals(self) -> bool:
        """Whether a hidden state of the best fit may be constants that differ between trajectories."""
        return may_differ(self.train) and len(self.train.states) <= MOST_VARIABLES and self.may_hide_states

    @property
    def may_hide_states(self) -> bool:
        """Whether the best fit may lack an unmeasured state, and the user has left hidden states and starts open."""
        is_left_open = self.options.hidden == "auto" and self.options.start == "auto"
        return is_left_open and self.has_direct_readout and not self.best.is_content

    @property
    def hidden_of_best(self) -> int:
        """Number of hidden states of the best fit, without those of a linear system, which a network may not need."""
        return 0 if self.best.is_linear_system else count_hidden(self.best.fit)

    @property
    def readout(self) -> object:
        """The requested observation, or that of the best fit if its channels respond to inputs at once."""
        best = self.best.fit.options
        return best.observation if reads_inputs(best) else self.options.observation

    @property
    def may_have_more_states(self) -> bool:
        """Whether the best model, whose starts are read from past rows, may need more hidden states than a linear model
        reveals.

        Requires that the user specified none, residuals exceed noise, the model does not overfit, and the states added
        last have helped.
        """
        best, added = self.best, [judged for judged in self.tried if judged.attempt.name.endswith(MORE_STATES)]
        if self.options.hidden != "auto" or len(added) >= MOST_ADDED or not reads_past(best.fit):
            return False
        helped = added[-1] is best if added else best.attempt.name in (FIRST_ATTEMPT, NETWORK_READOUT, PAST_ROWS)
        done = best.attempt.verdict in ("noise-limited", "unfinished") or best.attempt.is_overfitted
        return helped and not done

    @property
    def may_hold_elsewhere(self) -> bool:
        """Whether another model may generalize better to other initial states, if a network fits few variables well."""
        field, last = self.options.field, self.made[-1].attempt.name
        network = callable(field) and maker_class(field) is MLP and not reads_past(self.first)
        few = self.has_few_variables and has_enough_rows(self.train)
        return last in (FIRST_ATTEMPT, SPARSE_EQUATIONS) and network and few


@dataclass(frozen=True)
class Candidate:
    """A way to fit.

    - `name`: name of its attempt. `keys`: config keys that it changes.
    - `options`: returns the complete options, given the race, or a fit that takes no training; None if it does not
      apply.
    - `what`, `when`: descriptions of its effect and of the condition under which it applies.
    """

    name: str
    keys: tuple[str, ...]
    options: Callable[[Race], Options | Fit | None]
    what: str
    when: str


def begin_at_derivatives(race: Race) -> Options | None:
    """Initializes equations alone with constants fitted to the derivatives of the data, if all states are measured."""
    options = race.options
    alone = is_equations_alone(options.field) and not trait_of(options.field, "is_sought", False)
    if not alone or count_hidden(race.first) or race.best.is_content:
        return None
    optimizer = options.optimizer or LevenbergMarquardt()
    return replace(options, recipe=Recipe({**DEFAULT_RECIPE.stages, "main": Plan(optimizer=optimizer)}))


def begin_at_several_constants(race: Race) -> Options | None:
    """Fits known equations from several sets of constants, with fitted initial states."""
    options, fit = race.options, race.first
    if options.restarts not in ("auto", 1) or isinstance(fit.model, Ensemble) or not fit.model.constants():
        return None
    start = fit.options.start if options.start == "auto" else options.start
    if options.start == "auto" and maker_class(start) is not Fitted:
        start = fitted_start(Facts.of(race.train, fit.data.get("validation")))
    return replace(options, start=start, restarts=KNOWN_STARTS[race.effort], optimizer=LevenbergMarquardt())


def search_equations(race: Race) -> Options | None:
    """Searches sparse equations in few variables, as `discover` does; for chaos, in windows."""
    options = race.options
    is_simple = race.has_few_variables or race.may_have_individuals
    if not options.discover or not is_simple or not has_enough_rows(race.train):
        return None
    if race.is_chaotic:
        start = functools.partial(Fitted, given=CHAOTIC_START) if options.start == "auto" else options.start
        return replace(of_few_terms(options), start=start)
    if begins_with_equations(options, race.train):
        return None
    return with_fitted_start(of_few_terms(options), race.train, race.first.data.get("validation"))


def begins_with_equations(options: Options, train: Dataset) -> bool:
    """Whether to try sparse equations before a network.

    Requires a short record with all variables measured and no request other than a plain network. It has few values, or
    inputs: of these, linear systems are fitted first as well.
    """
    field = options.field
    short = has_few_values(train) or begins_with_linear_system(options, train)
    most = MOST_DRIVEN_VARIABLES if train.is_driven else MOST_VARIABLES
    few = short and len(train.states) + len(train.inputs) <= most
    plain = callable(field) and maker_class(field) is MLP and is_plain(field) and options.discover
    measured = trait_of(options.observation, "is_direct", False) and options.hidden in ("auto", 0, ())
    if not (few and plain and measured and has_enough_rows(train)):
        return False
    # Inputs over many rows are learnt in windows; rows over decades of time need a field of the logarithm.
    facts = Facts.of(train)
    is_whole = facts.longest < LONG_RECORD * WINDOWS[-1] and not facts.decades and not train.angles
    # For columns of a mechanism, equations of motion were tried first.
    return is_whole and not may_be_mechanism(options, train) and not responds_at_once(options, train)


def begins_with_linear_system(options: Options, train: Dataset) -> bool:
    """Whether to try a linear system before a network: for a short driven record, if states and starts are left open.

    What an input moves often lags behind it, by states that are not measured. Longer records begin so if channels
    respond to inputs at once, or are clipped, which models of windows do not describe.
    """
    if not may_begin_with_linear_system(options, train):
        return False
    short = int(train.lengths.max()) < LONG_RECORD * WINDOWS[-1]
    return short or responds_at_once(options, train) or train.censored is not None


def may_begin_with_linear_system(options: Options, train: Dataset) -> bool:
    """Whether the options and the size of a record permit a linear system before a network."""
    field = options.field
    plain = callable(field) and maker_class(field) is MLP and is_plain(field)
    is_left_open = options.hidden == "auto" and options.start == "auto" and options.training.window == "auto"
    direct = trait_of(options.observation, "is_direct", False) and not train.angles and not options.scaling.angles
    if not (plain and is_left_open and direct and train.is_driven and train.events is None):
        return False
    rows = int(train.lengths.max())
    return LONG_RECORD * ENCODER_ROWS <= rows <= MOST_WHOLE_ROWS and not may_be_mechanism(options, train)


def of_linear_system(options: Options, train: Dataset, hidden: int) -> Options:
    """Returns options for a linear system with hidden states, fitted to whole trajectories."""
    start = functools.partial(Fitted, given=count_given(train))
    changed = replace(options, field=Linear, hidden=hidden, start=start, optimizer=LevenbergMarquardt(), restarts=1)
    return replace(changed, training=Training(window=None))


def of_small_network(options: Options, train: Dataset, hidden: int) -> Options:
    """Returns options for a small network beside a linear path, with fitted starts."""
    return replace(
        options,
        hidden=hidden,
        field=functools.partial(MLP, width=NARROW_WIDTH, depth=1, linear=True),
        start=functools.partial(Fitted, given=count_given(train)),
        optimizer=LevenbergMarquardt(),
        penalty=set_ridge(options, RIDGES[0] * int(train.mask.sum())),
        restarts=STARTS_OF_FEW_ROWS,
    )


def responds_at_once(options: Options, train: Dataset) -> bool:
    """Whether a channel responds to a held input at its own row; states would only respond after it."""
    limits = options.scaling.limits(train.states, train.inputs)
    kinds = options.solver.inputs
    may_hold = kinds == "auto" or "hold" in kinds_by_input(kinds, len(train.inputs))
    return may_hold and not limits and estimate_feedthrough(train) is not None


def of_few_terms(options: Options) -> Options:
    """Returns options for sparse equations, fitted to whole trajectories."""
    changed = replace(options, field=Sparse, optimizer=LevenbergMarquardt(), restarts=1)
    return replace(changed, training=Training(window=None))


def with_fitted_start(options: Options, train: Dataset, validation: Dataset | None) -> Options:
    """Fits the initial states of equations, since a first row is as noisy as any other."""
    if options.start != "auto" or len(train.trajectories) > MAX_FITTED_STARTS:
        return options
    return replace(options, start=fitted_start(Facts.of(train, validation)))


def put_beside_linear(race: Race) -> Options | None:
    """Puts a small network beside a linear path, which extrapolates, if the first, large network fits well."""
    if not race.may_hold_elsewhere or not race.best.is_content:
        return None
    field = functools.partial(MLP, linear=True)
    return replace(race.options, field=field, penalty=set_ridge(race.options, BESIDE_RIDGE), restarts=1)


def read_by_network(race: Race) -> Options | None:
    """Models the measurements as a network function of hidden states, such as a speed without its direction."""
    best = race.best
    is_left_open = race.options.hidden == "auto" and race.has_direct_readout
    if not is_left_open or best.is_content or best.attempt.is_overfitted:
        return None
    return replace(race.options, observation=NetworkReadout, hidden=HIDDEN_BEHIND)


def add_hidden_states(race: Race) -> Options | None:
    """Adds hidden states to the best model, since nonlinearity can hide them from a linear model."""
    if not race.may_have_more_states:
        return None
    options, before = race.options, race.best.fit.options
    assert isinstance(before.penalty, Penalty)
    penalty = set_ridge(options, float(before.penalty.ridge))
    if not race.train.is_driven:
        options = replace(options, start=before.start, training=Training(window=before.training.window))
    hidden = count_hidden(race.best.fit) + MORE_HIDDEN
    return replace(options, observation=before.observation, hidden=hidden, penalty=penalty)


def identify_free_response(race: Race) -> Fit | None:
    """Identifies the linear system of many states whose free response the record is, which takes no training."""
    train, fit = race.train, race.first
    is_needed = not race.best.is_content or has_few_values(train)
    if not is_needed or comes_first(train):
        return None
    found = fit_long_record(race.options, train, fit.data.get("validation"), lambda said: None)
    return None if found is None else found.fit


def read_past_rows(race: Race) -> Options | None:
    """Uses windows with starts read from the preceding rows, which carry information on unmeasured states.

    As for driven records, linear models determine the number of hidden states.
    """
    train = race.train
    if not race.may_hide_states or train.is_driven or train.events is not None:
        return None
    window = next((rows for rows in WINDOWS_AFTER_PAST if train.lengths.max() >= LONG_RECORD * rows), None)
    start = functools.partial(Encoder, rows=ENCODER_ROWS, before=True)
    return None if window is None else replace(race.options, start=start, training=Training(window=window))


def hide_fitted_state(race: Race) -> Options | None:
    """Adds a hidden state with a fitted start to short trajectories, and a small network beside a linear path.

    A network with few weights does not overfit noise, and a fitted start is less noisy than one read from rows.
    """
    lengths, earlier = race.train.lengths, [judged for judged in race.tried if judged.attempt.name.endswith(FITTED)]
    is_short = len(lengths) <= MAX_FITTED_STARTS and lengths.max() < LONG_RECORD * WINDOWS[-1]
    if not race.may_hide_states or not is_short or (earlier and earlier[-1] is not race.best):
        return None
    return replace(of_small_network(race.options, race.train, race.hidden_of_best + 1), observation=race.readout)


def take_for_positions(race: Race) -> Options | None:
    """Takes the measured states of short trajectories for positions, whose velocities are hidden.

    This is a form of any system of twice as many states: a hidden state shows as the slope of what it moves.
    """
    train = race.train
    is_short = len(train.lengths) <= MAX_FITTED_STARTS and train.lengths.max() < LONG_RECORD * WINDOWS[0]
    if not race.may_hide_states or not is_short or train.events is not None:
        return None
    changed = of_small_network(race.options, train, len(train.states))
    field = functools.partial(SecondOrder, width=NARROW_WIDTH, depth=1)
    hidden = tuple(f"{name}_rate" for name in train.states)
    hidden = len(hidden) if {*hidden} & {*train.states, *train.inputs} else hidden
    return replace(changed, field=field, hidden=hidden, restarts=1, observation=race.readout)


def read_equations_of_motion(race: Race) -> Options | None:
    """Reads equations of few terms from the second-order fit, which has estimated the velocities."""
    fit, train = next((judged.fit for judged in race.tried if judged.attempt.name == SECOND_ORDER), None), race.train
    if fit is None or not race.options.discover:
        return None
    model = fit.model.typical
    try:
        findings = search_field(model, model.scaler.mark_angles(train), Vocabulary(), seed=race.options.seed)
    except ValueError:  # A field that can't be simulated, or names that equations can't have.
        return None
    if findings.interrupted:
        raise KeyboardInterrupt
    if not findings.fits:
        return None
    best = findings.ranked[0]
    field = functools.partial(Known, equations=best.equations, constants=best.constants)
    changed = replace(race.options, field=field, hidden=tuple(model.hidden), optimizer=LevenbergMarquardt(), restarts=1)
    changed = replace(changed, recipe=without_derivatives(changed.recipe), training=Training(window=None))
    if not Facts.of(train, race.first.data.get("validation")).restarted:
        return replace(changed, start=functools.partial(Fitted, given=None))
    return replace(changed, start=functools.partial(Fitted, given=count_given(train, MOTION_ROWS)))


def hide_state(race: Race) -> Options | None:
    """Adds a hidden state whose start is estimated, or follows from constant inputs, such as a dose."""
    alone = not race.hidden_of_best
    return replace(race.options, hidden=1) if alone and race.may_hide_states else None


def read_first_rows(race: Race) -> Options | None:
    """Adds a hidden state whose start is read from the first rows, such as a speed or an amount already present."""
    rows = min(FIRST_ROWS, int(race.train.lengths.min()) // FIRST_ROWS)
    if rows < 2 or not race.may_hide_states:
        return None
    hidden = max(race.hidden_of_best, 1)
    return replace(race.options, hidden=hidden, start=functools.partial(Encoder, rows=rows))


def hide_another_state(race: Race) -> Options | None:
    """Adds one hidden state to the best fit that has one."""
    best = race.best
    name = best.attempt.name
    if HIDDEN_STATE not in name or name.endswith(FITTED) or not race.may_hide_states:
        return None
    start = best.fit.options.start if READ_FROM_ROWS in name else "auto"
    return replace(race.options, hidden=count_hidden(best.fit) + 1, start=start)


def fit_linear(race: Race) -> Options | None:
    """Tries a linear field, which is quick, if the first fit is not good."""
    is_good = race.first.diagnose().kind in CONTENT and not race.made[0].runs_away
    if not race.measures_all or is_good:
        return None
    start = choose_start(race.options, race.train) if has_few_values(race.train) else race.options.start
    return replace(race.options, field=Linear, start=start, restarts=1)


def grow_windows(race: Race) -> Options | None:
    """Fits a linear path and a small network with a prior in growing windows."""
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
    """Repeats growing windows, with a stronger prior if the last such fit overfits, or a weaker one if none does."""
    earlier, penalty = (
        [judged for judged in race.tried if judged.attempt.name.startswith(GROWING)],
        race.options.penalty,
    )
    if not earlier or not isinstance(penalty, Penalty) or not isinstance(penalty.ridge, str):
        return None
    overfits = [judged.attempt.is_overfitted for judged in earlier]
    if not (overfits[-1] if stronger else not any(overfits)):
        return None
    last = earlier[-1].fit.options.penalty
    assert isinstance(last, Penalty) and isinstance(last.ridge, float)
    changed = grow_windows(race)
    ridge = last.ridge * (STRONGER_PRIOR if stronger else WEAKER_PRIOR)
    return changed and replace(changed, penalty=replace(last, ridge=ridge))


def fit_polynomial(race: Race, *, degree: int) -> Options | None:
    """Fits a polynomial of few variables, with a fitted start if rows are few."""
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
    """Fits the requested field in windows of a chaotic record."""
    return replace(race.options, training=Training(window=None), restarts=1)


def fit_as_windows_grow(race: Race, *, derivatives: bool) -> Options:
    """Returns options with growing windows, or with whole trajectories for few rows or a chaotic record's windows."""
    is_whole = race.is_chaotic or has_few_values(race.train)
    recipe = race.options.recipe if is_whole else growing_windows(race.train, derivatives=derivatives)
    return replace(race.options, recipe=recipe, optimizer=LevenbergMarquardt(), training=Training(window=None))


def choose_start(options: Options, train: Dataset) -> MakeStart | str:
    """Returns the requested start rule; by default a fitted start if rows are few, since the first row is noisy, and
    otherwise one that works for windows."""
    if options.start != "auto":
        return options.start
    return functools.partial(Fitted, given=count_given(train)) if has_few_values(train) else First


def count_given(train: Dataset, most: int = GIVEN_ROWS) -> int:
    """Returns the number of rows of a new trajectory used to fit its start; few, because these rows are not scored."""
    return int(np.clip(np.median(train.lengths) * GIVEN_SHARE, 1, most))


def set_ridge(options: Options, weight: float) -> Penalty:
    """Returns the user's penalty, with this weight of the prior if it was left open."""
    assert isinstance(options.penalty, Penalty)
    ridge = options.penalty.ridge
    return replace(options.penalty, ridge=weight if isinstance(ridge, str) else ridge)


GROWING, PAST_ROWS, MORE_STATES = "growing windows", "windows after past rows", "more hidden states"
NETWORK_READOUT, HIDDEN_STATE = "readout by a network", "hidden state"
READ_FROM_ROWS, FITTED = "read from first rows", "fitted starts"
SECOND_ORDER, EQUATIONS_OF_MOTION = "second order", f"{SPARSE_EQUATIONS} of second order"
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
    "at most three measured states and inputs, with 12 rows or more of each; beside hidden states, if the record has "
    "three trajectories or more and no inputs, since their constants may differ",
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
        "the best model with two more hidden states, which a linear model may not reveal",
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
FREE_RESPONSE = Candidate(
    LINEAR_SYSTEM,
    ("field", "hidden", "observation", "start"),
    identify_free_response,
    "a linear system of up to 40 states, whose free response is the record",
    f"rows are even and swing without inputs, a trajectory has 60 rows or more, and {NOT_GOOD} or rows are few",
)
POSITIONS = Candidate(
    SECOND_ORDER,
    ("field", "hidden", "start", "optimizer"),
    take_for_positions,
    "measured states are positions, whose velocities are hidden, and a network of 16 units gives their accelerations, "
    "by Levenberg and Marquardt's steps from the derivatives of smoothing splines",
    f"{NOT_GOOD}, {OPEN}, and there are at most 100 trajectories of fewer than 384 rows",
)
MOTION = Candidate(
    EQUATIONS_OF_MOTION,
    ("field", "hidden", "start", "optimizer"),
    read_equations_of_motion,
    "equations of few terms that give the accelerations of the second-order fit, fitted to the measurements",
    "a second-order fit was tried, even if it is good",
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
        f"{HIDDEN_STATE} {READ_FROM_ROWS}",
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

# What is tried where not all states may be measured.
UNMEASURED = (FREE_RESPONSE, POSITIONS, MOTION, AFTER_PAST_ROWS, MORE_HIDDEN_STATES, YET_MORE_STATES, *UNSEEN)
# The candidates for each kind of record, in the order in which they are tried.
CANDIDATES_BY_KIND: dict[str, tuple[Candidate, ...]] = {
    "known equations": OF_KNOWN,
    "a chaotic record, in windows of 50 rows": (replace(FEW_TERMS, name=SPARSE_IN_WINDOWS), *POLYNOMIALS, IN_WINDOWS),
    "a long record with inputs, or whose starts are read from past rows": (
        *(READOUT, MORE_HIDDEN_STATES, YET_MORE_STATES, FEW_TERMS, LINEAR),
        *(*GROWING_WINDOWS, *POLYNOMIALS),
    ),
    "up to three states": (FEW_TERMS, BESIDE, *UNMEASURED, LINEAR, *GROWING_WINDOWS, *POLYNOMIALS),
    "fewer than 200 values": (FEW_TERMS, *UNMEASURED, *POLYNOMIALS, *GROWING_WINDOWS, LINEAR),
    "more states": (FEW_TERMS, LINEAR, *GROWING_WINDOWS, *UNMEASURED, *POLYNOMIALS),
}


def candidates_of(race: Race) -> Sequence[Candidate]:
    """Returns the candidates for the kind of record, in the order in which they are tried."""
    field, (known, chaotic, driven, small, few, large) = race.options.field, CANDIDATES_BY_KIND.values()
    # If rows span decades of time, any other field needs an implicit method, which takes many seconds per step.
    if not callable(field) or maker_class(race.first.options.field) is LogTimeMLP or not has_motion(race.train):
        return ()
    if trait_of(field, "has_equations", False):
        return known
    if maker_class(field) is not MLP or not is_plain(field):
        return ()
    if race.is_chaotic:
        return chaotic
    if reads_past(race.first):
        return driven
    if has_few_values(race.train):
        return few
    return small if len(race.train.states) <= MOST_VARIABLES else large
