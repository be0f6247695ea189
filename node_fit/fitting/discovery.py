"""`discover` finds equations with constants from measurements, with rivals and a verdict."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np

from ..data.dataset import Dataset
from ..data.domains import Bounds
from ..data.groups import without_levels
from ..data.inputs import are_held
from ..discover.individuals import Individuals
from ..discover.names import with_plain_names, write_plainly
from ..discover.search import RESAMPLES, Findings, FoundSystem, Vocabulary, search, search_field
from ..discover.watch import SearchWatch, ignore_message
from ..model.fields.known import Hybrid, Known
from ..model.initial_state.trained import Fitted
from ..model.neural_ode import NeuralODE
from ..options.options import Effort, Options, place_of
from ..options.recipes import without_derivatives
from ..runtime.validation import check_argument, says_where
from .fit import fit
from .result import Fit

# Maximum difference in evidence for a system to count as a rival.
RIVAL = 10.0
# Minimum difference by which two systems can be distinguished [standard deviations].
LEAST_DIFFERENCE = 0.1
# Number of initial states among which the most discriminating one is chosen.
EXPERIMENTS = 24


class Bands(NamedTuple):
    """The evidence-weighted mean over systems, and the bounds of the central range; all `(row, state)`."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Experiment(NamedTuple):
    """An initial state from which the best system and a rival differ by `difference` standard deviations."""

    start: dict[str, float]
    rival: FoundSystem
    difference: float

    def __str__(self) -> str:
        start = ", ".join(f"{name} = {value:.3g}" for name, value in self.start.items())
        far = f"they differ by {self.difference:.2g} standard deviations"
        if self.difference < LEAST_DIFFERENCE:
            return f"no start within the data's range distinguishes the first two: from {start}, {far}."
        return f"a record from {start} would distinguish the first two: {far}."


@dataclass
class Discovery:
    """The result of `discover`.

    - `front`: systems by size, each with a smaller error than all smaller ones.
    - `ranked`: all refined systems, best first. `rivals`: those with evidence close to that of the best.
    - `shares`: for each state, the share of resamples in which each term of the best system was found.
    - `verdict`: a sentence. `explained`: whether an equation explains the records.
    - `options`: options for fitting the best system. `bounds`: bounds of known constants.
    - `reached`: states along the trajectories of the source model, `(row, state)`; None for measurements.
    - `interrupted`: whether Ctrl-C ended the search.
    - `individuals`: equations with constants of each trajectory, if only these describe the records.
    - `renamed`: column names that are invalid in equations, with their replacements in equations and in `data`.
    """

    data: Dataset
    ranked: list[FoundSystem]
    shares: dict[str, dict[str, float]]
    explained: bool
    verdict: str
    options: Options = field(default_factory=Options)
    bounds: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    reached: np.ndarray | None = None
    interrupted: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    individuals: Individuals | None = None
    _fit: Fit | None = None

    @staticmethod
    def of(found: Findings, data: Dataset, options: Options) -> "Discovery":
        """Converts the findings of a search, with the options for fitting the best system."""
        results = (found.ranked, found.shares, found.explained, found.verdict)
        return Discovery(data, *results, options, interrupted=found.interrupted, individuals=found.individuals)

    @property
    def found(self) -> FoundSystem:
        """The best system."""
        return self.ranked[0]

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states; the last can be hidden."""
        return tuple(self.found.equations)

    @property
    def front(self) -> list[FoundSystem]:
        front: list[FoundSystem] = []
        for system in sorted(self.ranked, key=lambda one: (one.size, one.error)):
            if not front or system.error < front[-1].error:
                front.append(system)
        return front

    @property
    def rivals(self) -> list[FoundSystem]:
        return [
            system for system in self.ranked[1:] if system.evidence - self.found.evidence < RIVAL and not system.escapes
        ]

    @property
    def best(self) -> Fit:
        """A `Fit` of `Known` with the best equations; its `confidence` returns intervals of the constants."""
        if self._fit is None:
            self._fit = fit(self.data, field=self.known(), options=self.options)
        return self._fit

    def known(self, place: int = 0) -> functools.partial[Known]:
        """Returns the constructor of the field of the system at index `place` in `ranked`."""
        system = self.ranked[place]
        constants = {
            name: place_within(value, self.bounds.get(name, (None, None))) for name, value in system.constants.items()
        }
        return functools.partial(Known, equations=system.equations, constants=constants)

    @property
    def weights(self) -> np.ndarray:
        """The probability of the best system and of each rival."""
        evidence = np.array([system.evidence for system in (self.found, *self.rivals)])
        weights = np.exp(-(evidence - evidence[0]) / 2)
        return weights / weights.sum()

    def predict(
        self,
        y0: Mapping[str, float],
        ts: np.ndarray,
        us: Mapping[str, np.ndarray] | None = None,
        level: float = 0.9,
    ) -> Bands:
        """Simulates the best system and its rivals, and averages them by probability.

        The bands contain a share `level` of the probability. They show the uncertainty of the equations, but neither
        noise nor the uncertainty of the constants.

        **Arguments:** `y0`: initial values by state. `ts`: `(row,)`. `us`: inputs by name, `(row,)`.

        **Raises:** `ValueError` if no system can be simulated from `y0`.
        """
        start, ts = [float(y0[name]) for name in self.states], np.asarray(ts, float)
        solved = [system.simulate(start, ts, us) for system in (self.found, *self.rivals)]
        pairs = [(weight, ys) for weight, ys in zip(self.weights, solved, strict=True) if ys is not None]
        if not pairs:
            raise ValueError(f"no system that was found can be simulated from {dict(y0)} to {ts[-1]:g}.")
        weights, ys = np.array([weight for weight, _ in pairs]), np.stack([path for _, path in pairs])
        weights = weights / weights.sum()
        order = np.argsort(ys, axis=0)
        ranked = np.take_along_axis(ys, order, axis=0)
        reached = weights[order].cumsum(axis=0)

        def quantile(share: float) -> np.ndarray:
            place = (reached < share).sum(axis=0, keepdims=True).clip(max=len(ys) - 1)
            return np.take_along_axis(ranked, place, axis=0)[0]

        return Bands(np.tensordot(weights, ys, 1), quantile((1 - level) / 2), quantile((1 + level) / 2))

    def experiment(self) -> Experiment | None:
        """Finds the initial state within the range of the data from which the best system and its first rival differ
        most.

        None without a rival. Inputs are those of the first record.
        """
        if not self.rivals:
            return None
        data, rival = self.data, self.rivals[0]
        rows = int(data.lengths[0])
        ts, values = data.ts[0, :rows], self.reached
        if values is None:
            values = np.concatenate([data.ys[index, :n] for index, n in enumerate(data.lengths)])
        us = {name: data.us[0, :rows, index] for index, name in enumerate(data.inputs)}
        low, high, scale = np.nanmin(values, 0), np.nanmax(values, 0), np.nanstd(values, 0)
        best: tuple[float, np.ndarray] | None = None
        for start in np.random.default_rng(0).uniform(low, high, (EXPERIMENTS, len(low))):
            best_ys, rival_ys = self.found.simulate(start, ts, us), rival.simulate(start, ts, us)
            if best_ys is not None and rival_ys is not None:
                gap = float(np.sqrt((((best_ys - rival_ys) / scale) ** 2).mean()))
                best = (gap, start) if best is None or gap > best[0] else best
        if best is None:
            return None
        return Experiment(dict(zip(self.states, map(float, best[1]), strict=True)), rival, best[0])

    def sympy(self) -> dict[str, object]:
        """Returns the best equations as SymPy expressions, by state (`pip install sympy`)."""
        import sympy

        names = {name: sympy.Symbol(name) for name in (*self.states, *self.data.inputs)}
        return {state: sympy.parse_expr(text, local_dict=names) for state, text in self.found.shown.items()}

    def latex(self) -> str:
        """Returns the best equations in LaTeX, from SymPy (`pip install sympy`)."""
        import sympy

        rows = [rf"\dot{{{state}}} = {sympy.latex(rate)}" for state, rate in self.sympy().items()]
        return " \\\\\n".join(rows)

    def __str__(self) -> str:
        if not self.explained:
            return self.verdict
        lines = [self.verdict, str(self.found)]
        if self.rivals and not self.interrupted:
            shown = str(self.rivals[0]).replace("\n", "\n  ")
            share = f"among all these, the best has a probability of {100 * self.weights[0]:.0f} %"
            lines.append(f"rivals that explain it about as well: {len(self.rivals)}; {share}. The first rival:")
            lines += [f"  {shown}", *([str(experiment)] if (experiment := self.experiment()) else [])]
        return "\n".join(lines)


def place_within(value: float, bounds: Bounds) -> float | list[float | None]:
    """Returns a constant with its bounds, moved inside them if a search left them; without bounds, only the number."""
    lower, upper = bounds
    if bounds == (None, None):
        return value
    room = 1e-6 * max(abs(value), *(abs(bound) for bound in bounds if bound is not None))
    value = value if lower is None else max(value, lower + room)
    return [value if upper is None else min(value, upper - room), lower, upper]


class Limits(TypedDict):
    """Arguments of `discover` that limit the search."""

    symbolic: bool | None
    resamples: int
    effort: Effort
    seed: int
    watch: SearchWatch


@says_where(lambda name: place_of(name, ()))
def discover(
    source: Dataset | Fit,
    *,
    libraries: Sequence[str] | None = None,
    terms: Sequence[str] = (),
    required: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    conserved: Sequence[str] = (),
    mass_action: bool = False,
    symbolic: bool | None = None,
    resamples: int = RESAMPLES,
    effort: Effort = "normal",
    seed: int = 0,
    seconds: float | None = None,
    tell: Callable[[str], object] = ignore_message,
    options: Options | None = None,
) -> Discovery:
    """Finds the equations of a system from measurements of its states, or from a fitted model of them.

    ```python
    found = node_fit.discover(data)  # from measurements
    found = node_fit.discover(node_fit.fit(data, field="second_order"))  # from the field of a model
    ```

    For a fit, the search looks for equations that reproduce the rates of its field along its own trajectories. For a
    `Hybrid`, it replaces only the network and keeps the known equations. The equations are then fitted to the
    measurements and judged on them.

    **Arguments:**

    - `source`: records of all states, or a fit of some or all of them.
    - `libraries`: names of the term libraries, all if None; see `docs/discover.md`.
    - `terms`, `required`, `forbidden`: terms as text, such as `"x^2/(1 + x)"`: additional terms, terms that every sum
      contains, and terms that no sum contains.
    - `conserved`: conserved sums of states, such as `"S + I + R"`; any outflow of one state flows into another.
    - `mass_action`: whether rates are limited to reactions between at most two molecules.
    - `symbolic`: whether to also search with pyoperon; if None, only if it is installed and sums of terms leave errors.
    - `resamples`: number of resamples for the share of each term.
    - `effort`: `quick`, `normal` or `thorough`; determines how many candidates are simulated.
    - `seed`: seed of the symbolic search and the resamples.
    - `seconds`: time limit, after which the best result so far is returned; None for no limit, which makes results
      reproducible for a seed.
    - `tell`: called with a short description of the next step.
    - `options`: options of the fit `Discovery.best`; its starts are fitted unless these specify another rule. The
      search holds inputs between rows if `solver.inputs` is `hold`, or by default if they look so or states respond so.

    **Raises:** `ValueError` if the data have too few rows, or events, a text is not a term, or the field can't be read;
    `TypeError` for an unknown argument; the message shows where it belongs.
    """
    check_argument("effort", effort, Effort, "quick, normal or thorough")
    check_argument("options", options, Options | None, "a node_fit.Options such as Options(precision='x64')")
    plain: dict[str, str] = {}
    if isinstance(source, Dataset):
        source, plain = with_plain_names(without_levels(source))
    terms, required, forbidden, conserved = (
        write_plainly(texts, plain) for texts in (terms, required, forbidden, conserved)
    )
    vocabulary = Vocabulary(libraries, terms, required, forbidden, conserved, mass_action)
    limits = Limits(symbolic=symbolic, resamples=resamples, effort=effort, seed=seed, watch=SearchWatch(tell, seconds))
    if isinstance(source, Fit):
        options = options or Options(scaling=source.options.scaling)
        return discover_in(source.model.typical, source.data["train"], vocabulary, limits, options)
    options = with_fitted_starts(options or Options())
    inputs = options.solver.inputs
    held = None if inputs == "auto" else are_held(inputs, len(source.inputs))
    findings = search(source, vocabulary, **limits, held=held)
    if inputs == "auto" and source.inputs and findings.ranked[0].held == source.inputs:
        options = replace(options, solver=replace(options.solver, inputs="hold"))
    discovery = Discovery.of(findings, source, options)
    renamings = "".join(f" In equations, {name!r} is {short}." for name, short in plain.items())
    return replace(discovery, renamed=plain, verdict=discovery.verdict + renamings)


def with_fitted_starts(options: Options) -> Options:
    options = replace(options, recipe=without_derivatives(options.recipe))
    return options if options.start != "auto" else replace(options, start=functools.partial(Fitted, given=None))


def discover_in(model: NeuralODE, data: Dataset, vocabulary: Vocabulary, limits: Limits, options: Options) -> Discovery:
    """Discovers equations from the field of a fitted model.

    **Arguments:** `data`: the data to which it was fitted.
    """
    findings = search_field(model, model.scaler.mark_angles(data), vocabulary, **limits)
    bounds = {}
    if isinstance(model.field, Hybrid):
        bounds = dict(zip(model.field.known.constants.names, model.field.known.constants.bounds, strict=True))
    options = replace(with_fitted_starts(options), hidden=tuple(model.hidden) or 0)
    return replace(Discovery.of(findings, data, options), bounds=bounds, reached=findings.reached)
