"""A fit as an estimator of scikit-learn: `fit`, `predict`, `score`, `clone`, `GridSearchCV`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float

try:
    from sklearn.base import BaseEstimator, RegressorMixin, Tags
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError:
    raise ImportError("node_fit.Regressor needs scikit-learn: pip install 'node_fit[sklearn]'.") from None

from ..data.dataset import Dataset
from ..fitting.fit import fit
from ..fitting.result import Fit
from ..options.options import Options, Penalty

# The trajectory of rows that belong to none by name.
ALONE = "0"


class Rows(NamedTuple):
    """The parts of a table `X`: trajectories as texts, times and inputs of each row, and names of time and inputs."""

    labels: np.ndarray
    ts: Float[np.ndarray, " row"]
    us: Float[np.ndarray, "row input"]
    time: str
    inputs: list[str]


class RecordRows(NamedTuple):
    """Measured rows of a trajectory in order of time."""

    ts: Float[np.ndarray, " row"]
    ys: Float[np.ndarray, "row state"]
    us: Float[np.ndarray, "row input"]


class Regressor(RegressorMixin, BaseEstimator):
    """A neural or known ODE by the conventions of scikit-learn (the extra `sklearn`).

    ```python
    model = node_fit.Regressor(field="linear", trajectory="id").fit(frame[["id", "t", "u"]], frame[["x", "y"]])
    search = GridSearchCV(model, {"field": ["linear", "mlp"], "ridge": [0.01, 0.1]}, cv=GroupKFold(3))
    search.fit(X, y, groups=X["id"])
    ```

    A row of `X` is a time, with its inputs and the name of its trajectory; a row of `y` are the states measured then,
    NaN where one was not. Rows may come in any order; those of a trajectory at one time are averaged.

    **Arguments:**

    - `time`, `trajectory`, `inputs`: columns of `X`, by name or by number: of times; of the names of trajectories, None
      if all rows are one; and of inputs, None for all other columns.
    - `field`, `hidden`, `start`, `solver`, `optimizer`, `recipe`, `effort`, `precision`: options of `node_fit.Options`;
      those that are None are as in `options`.
    - `steps`, `window`: of `node_fit.Training`; `ridge`: of `node_fit.Penalty`.
    - `validation_fraction`: share of the data that chooses the best iterate and stops the fit early; 0 for none.
    - `random_state`: the seed of initial parameters and minibatches.
    - `options`: all other options.

    After `fit`, `fit_` is the `node_fit.Fit`, and `model_` its model.
    """

    def __init__(
        self,
        *,
        time: int | str = 0,
        trajectory: int | str | None = None,
        inputs: Sequence[int | str] | None = None,
        field: object = None,
        hidden: object = None,
        start: object = None,
        solver: object = None,
        optimizer: object = None,
        recipe: object = None,
        effort: str | None = None,
        precision: str | None = None,
        steps: int | None = None,
        window: int | str | None = None,
        ridge: float | None = None,
        validation_fraction: float = 0.0,
        random_state: int | None = None,
        options: Options | None = None,
    ):
        self.time = time
        self.trajectory = trajectory
        self.inputs = inputs
        self.field = field
        self.hidden = hidden
        self.start = start
        self.solver = solver
        self.optimizer = optimizer
        self.recipe = recipe
        self.effort = effort
        self.precision = precision
        self.steps = steps
        self.window = window
        self.ridge = ridge
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.options = options

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # Of rows that are no trajectory.
        return tags

    def fit(self, X: object, y: object, groups: object = None) -> Self:
        """Fits the trajectories.

        **Arguments:** `X`, `y`: arrays or data frames, as the class describes. `groups`: the trajectory of each row, in
        place of the column `trajectory`.

        **Raises:** `ValueError` if shapes differ, a column is unknown, or no trajectory has two times.
        """
        rows = self.rows_of(X, groups, reset=True)
        names = [str(name) for name in getattr(y, "columns", [])]
        ys = self.states_of(y, len(rows.ts))
        self.is_single_ = np.asarray(y).ndim == 1
        names = names or [f"y{at}" for at in range(ys.shape[1])]
        self.records_ = {label: take_record(rows, ys, label) for label in dict.fromkeys(rows.labels.tolist())}
        data = as_dataset(self.records_, names, rows.inputs, rows.time)
        parts = data.split(validation=self.validation_fraction, test=0.0) if self.validation_fraction else None
        train, validation = (data, None) if parts is None else (parts.train, parts.validation)
        self.fit_: Fit = fit(train, validation=validation, options=self.fit_options, progress=False)
        self.model_ = self.fit_.model
        return self

    def predict(self, X: object, y: object = None, groups: object = None) -> Float[np.ndarray, "row ..."]:
        """Simulated states at the rows of `X`.

        A trajectory of the training data is simulated from its own start, with its inputs. Another one begins with the
        first row of `y`, if that is given, else with the mean of all starts.

        **Returns:** shape `(row, state)`, or `(row,)` if `y` of the fit had one axis.

        **Raises:** `NotFittedError` before `fit`; `ValueError` if columns differ from those of the fit.
        """
        check_is_fitted(self)
        rows = self.rows_of(X, groups, reset=False)
        data = self.fit_.data["train"]
        given = None if y is None else self.states_of(y, len(rows.ts))
        found = np.full((len(rows.ts), len(data.states)), np.nan)
        records: dict[str, RecordRows] = {}
        for label in dict.fromkeys(rows.labels.tolist()):
            states = np.full(found.shape, np.nan) if given is None else given
            records[label] = self.with_known(label, take_record(rows, states, label))
        predicted = self.model_.bands(as_dataset(records, data.states, data.inputs, data.time), earlier=True).ys
        for place, (label, record) in enumerate(records.items()):
            own = np.flatnonzero(rows.labels == label)
            found[own] = predicted[place][np.searchsorted(record.ts, rows.ts[own])]
        return found[:, 0] if self.is_single_ else found

    def score(self, X: object, y: object, sample_weight: object = None, groups: object = None) -> float:
        """R² of `predict(X, y)`, the mean over states, at the rows where all of them were measured."""
        predicted = np.reshape(self.predict(X, y, groups), (len(np.asarray(y)), -1))
        ys = self.states_of(y, len(predicted))
        known = np.asarray(np.isfinite(ys).all(axis=1))
        weight = None if sample_weight is None else np.asarray(sample_weight, float)[known]
        lost = ~np.isfinite(predicted[known]).all()
        return float("-inf") if lost else r2_score(ys[known], predicted[known], sample_weight=weight)

    @property
    def fit_options(self) -> Options:
        """The options of the fit."""
        base = self.options or Options()
        names = ("field", "hidden", "start", "solver", "optimizer", "recipe", "effort", "precision")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        training = {name: getattr(self, name) for name in ("steps", "window") if getattr(self, name) is not None}
        if training:
            given["training"] = replace(base.training, **training)
        if self.ridge is not None:
            penalty = Penalty() if isinstance(base.penalty, str) else base.penalty
            given["penalty"] = replace(penalty, ridge=self.ridge)
        if self.random_state is not None:
            given["seed"] = int(self.random_state)
        return replace(base, **given)

    def rows_of(self, X: object, groups: object, *, reset: bool) -> Rows:
        """The parts of a table.

        **Arguments:** `reset`: whether its columns are those that later ones must have.
        """
        fewest = 2 if reset else 1
        names = [str(name) for name in getattr(X, "columns", [])]
        if names:
            table = np.asarray(X, dtype=object)
        else:
            table = check_array(X, dtype=np.float64, ensure_min_samples=fewest, estimator=self, input_name="X")
        validate_data(self, X, reset=reset, skip_check_array=True)
        named, names = names, names or [f"u{at}" for at in range(table.shape[1])]
        time = find_column(self.time, names, "time")
        trajectory = None if self.trajectory is None else find_column(self.trajectory, names, "trajectory")
        rest = [at for at in range(len(names)) if at not in (time, trajectory)]
        inputs = rest if self.inputs is None else [find_column(each, names, "inputs") for each in self.inputs]
        numbers = check_array(
            np.asarray(table[:, [time, *inputs]], dtype=float), dtype=np.float64, estimator=self, input_name="X"
        )
        labels = groups if groups is not None else None if trajectory is None else table[:, trajectory]
        texts = (
            np.full(len(table), ALONE, object)
            if labels is None
            else np.array([str(each) for each in np.asarray(labels)], object)
        )
        if len(texts) != len(table):
            raise ValueError(f"groups has {len(texts)} entries, but X has {len(table)} rows.")
        return Rows(texts, numbers[:, 0], numbers[:, 1:], names[time] if named else "t", [names[at] for at in inputs])

    def states_of(self, y: object, count: int) -> Float[np.ndarray, "row state"]:
        """The states of `y`, with an axis of states."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; pass the states."
            )
        ys = check_array(
            y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", estimator=self, input_name="y"
        )
        if len(ys) != count:
            raise ValueError(f"X has {count} rows, but y has {len(ys)}: inconsistent numbers of samples.")
        return ys[:, None] if ys.ndim == 1 else ys

    def with_known(self, label: str, asked: RecordRows) -> RecordRows:
        """The rows that are asked for, with the measurements from which they are simulated."""
        first = np.argmax(np.isfinite(asked.ys).all(axis=1))
        ys = np.full_like(asked.ys, np.nan)
        if label not in self.records_:
            starts = np.array([record.ys[0] for record in self.records_.values()])
            known = bool(np.isfinite(asked.ys[first]).all())
            ys[first if known else 0] = asked.ys[first] if known else np.nanmean(starts, axis=0)
            return asked._replace(ys=ys)
        own = self.records_[label]
        ts, at = np.unique(np.concatenate([own.ts, asked.ts]), return_index=True)
        return RecordRows(ts, np.concatenate([own.ys, ys])[at], np.concatenate([own.us, asked.us])[at])


def find_column(given: int | str, names: Sequence[str], role: str) -> int:
    """The number of a column.

    **Raises:** `ValueError` if there is no such column.
    """
    if isinstance(given, str):
        if given not in names:
            raise ValueError(f"{role} names the column {given!r}, but those of X are {', '.join(names)}.")
        return names.index(given)
    if not -len(names) <= given < len(names):
        raise ValueError(f"{role}={given} is no column of X, which has {len(names)}.")
    return given % len(names)


def take_record(rows: Rows, ys: np.ndarray, label: str) -> RecordRows:
    """The rows of a trajectory in order of time; of several at one time, the means."""
    own = np.flatnonzero(rows.labels == label)
    ts, first, group = np.unique(rows.ts[own], return_index=True, return_inverse=True)
    known = np.isfinite(ys[own])
    counts = np.stack([np.bincount(group, column, len(ts)) for column in known.T], axis=1)
    sums = np.stack([np.bincount(group, column, len(ts)) for column in np.where(known, ys[own], 0.0).T], axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return RecordRows(ts, means, rows.us[own][first])


def as_dataset(records: dict[str, RecordRows], states: Sequence[str], inputs: Sequence[str], time: str) -> Dataset:
    """A dataset of trajectories by name."""
    return Dataset.from_arrays(
        [record.ts for record in records.values()],
        [record.ys for record in records.values()],
        [record.us for record in records.values()],
        states=list(states),
        inputs=list(inputs),
        trajectories=list(records),
        time=time,
    )
