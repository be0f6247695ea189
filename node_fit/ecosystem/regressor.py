"""A scikit-learn estimator: `fit`, `predict`, `score`, `clone`, `GridSearchCV`."""

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

# Name of the trajectory of rows without trajectory names.
ALONE = "0"


class Rows(NamedTuple):
    """The parts of a table `X`: trajectories as strings, times and inputs of each row, and names of time and inputs."""

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
    """A neural or known ODE that follows the conventions of scikit-learn (the extra `sklearn`).

    ```python
    model = node_fit.Regressor(field="linear", trajectory="id").fit(frame[["id", "t", "u"]], frame[["x", "y"]])
    search = GridSearchCV(model, {"field": ["linear", "mlp"], "ridge": [0.01, 0.1]}, cv=GroupKFold(3))
    search.fit(X, y, groups=X["id"])
    ```

    A row of `X` holds a time, its inputs and the name of its trajectory. A row of `y` holds the states measured then,
    NaN if missing. Rows can be in any order; rows of one trajectory at the same time are averaged.

    **Arguments:**

    - `time`, `trajectory`, `inputs`: columns of `X`, by name or by number: the times; the names of trajectories, None
      for a single trajectory; and the inputs, None for all other columns.
    - `field`, `hidden`, `start`, `solver`, `optimizer`, `recipe`, `effort`, `precision`: options of `node_fit.Options`;
      None for the value in `options`.
    - `steps`, `window`: options of `node_fit.Training`; `ridge`: option of `node_fit.Penalty`.
    - `validation_fraction`: share of the data used to choose the best iterate and to stop the fit early; 0 for none.
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
        tags.regressor_tags.poor_score = True  # on rows that form no trajectory
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
        names = names or [f"y{index}" for index in range(ys.shape[1])]
        self.records_ = {label: take_record(rows, ys, label) for label in dict.fromkeys(rows.labels.tolist())}
        data = as_dataset(self.records_, names, rows.inputs, rows.time)
        parts = data.split(validation=self.validation_fraction, test=0.0) if self.validation_fraction else None
        train, validation = (data, None) if parts is None else (parts.train, parts.validation)
        self.fit_: Fit = fit(train, validation=validation, options=self.fit_options, progress=False)
        self.model_ = self.fit_.model
        return self

    def predict(self, X: object, y: object = None, groups: object = None) -> Float[np.ndarray, "row ..."]:
        """Simulates the states at the rows of `X`.

        A trajectory of the training data is simulated from its own initial state, with its inputs. Any other trajectory
        starts from the first row of `y` if present, else from the mean of all initial states.

        **Returns:** shape `(row, state)`, or `(row,)` if `y` of the fit had one axis.

        **Raises:** `NotFittedError` before `fit`; `ValueError` if columns differ from those of the fit.
        """
        check_is_fitted(self)
        rows = self.rows_of(X, groups, reset=False)
        data = self.fit_.data["train"]
        measured = None if y is None else self.states_of(y, len(rows.ts))
        predictions = np.full((len(rows.ts), len(data.states)), np.nan)
        records: dict[str, RecordRows] = {}
        for label in dict.fromkeys(rows.labels.tolist()):
            states = np.full(predictions.shape, np.nan) if measured is None else measured
            records[label] = self.with_known(label, take_record(rows, states, label))
        predicted = self.model_.bands(as_dataset(records, data.states, data.inputs, data.time), earlier=True).ys
        for place, (label, record) in enumerate(records.items()):
            places = np.flatnonzero(rows.labels == label)
            predictions[places] = predicted[place][np.searchsorted(record.ts, rows.ts[places])]
        return predictions[:, 0] if self.is_single_ else predictions

    def score(self, X: object, y: object, sample_weight: object = None, groups: object = None) -> float:
        """Returns R² of `predict(X, y)`, averaged over states, at the rows in which all states were measured."""
        predicted = np.reshape(self.predict(X, y, groups), (len(np.asarray(y)), -1))
        ys = self.states_of(y, len(predicted))
        is_complete = np.asarray(np.isfinite(ys).all(axis=1))
        weight = None if sample_weight is None else np.asarray(sample_weight, float)[is_complete]
        lost = ~np.isfinite(predicted[is_complete]).all()
        return float("-inf") if lost else r2_score(ys[is_complete], predicted[is_complete], sample_weight=weight)

    @property
    def fit_options(self) -> Options:
        """The options of the fit."""
        base = self.options or Options()
        names = ("field", "hidden", "start", "solver", "optimizer", "recipe", "effort", "precision")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        training = {name: getattr(self, name) for name in ("steps", "window") if getattr(self, name) is not None}
        if training:
            changes["training"] = replace(base.training, **training)
        if self.ridge is not None:
            penalty = Penalty() if isinstance(base.penalty, str) else base.penalty
            changes["penalty"] = replace(penalty, ridge=self.ridge)
        if self.random_state is not None:
            changes["seed"] = int(self.random_state)
        return replace(base, **changes)

    def rows_of(self, X: object, groups: object, *, reset: bool) -> Rows:
        """Splits a table into its parts.

        **Arguments:** `reset`: whether later tables must have the columns of this one.
        """
        fewest = 2 if reset else 1
        names = [str(name) for name in getattr(X, "columns", [])]
        if names:
            table = np.asarray(X, dtype=object)
        else:
            table = check_array(X, dtype=np.float64, ensure_min_samples=fewest, estimator=self, input_name="X")
        validate_data(self, X, reset=reset, skip_check_array=True)
        named, names = names, names or [f"u{index}" for index in range(table.shape[1])]
        time = find_column(self.time, names, "time")
        trajectory = None if self.trajectory is None else find_column(self.trajectory, names, "trajectory")
        others = [index for index in range(len(names)) if index not in (time, trajectory)]
        inputs = others if self.inputs is None else [find_column(column, names, "inputs") for column in self.inputs]
        numbers = check_array(
            np.asarray(table[:, [time, *inputs]], dtype=float), dtype=np.float64, estimator=self, input_name="X"
        )
        labels = groups if groups is not None else None if trajectory is None else table[:, trajectory]
        texts = (
            np.full(len(table), ALONE, object)
            if labels is None
            else np.array([str(label) for label in np.asarray(labels)], object)
        )
        if len(texts) != len(table):
            raise ValueError(f"groups has {len(texts)} entries, but X has {len(table)} rows.")
        return Rows(
            texts, numbers[:, 0], numbers[:, 1:], names[time] if named else "t", [names[index] for index in inputs]
        )

    def states_of(self, y: object, count: int) -> Float[np.ndarray, "row state"]:
        """Returns the states of `y`, with an axis of states."""
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
        """Adds the measurements from which the requested rows are simulated."""
        first = np.argmax(np.isfinite(asked.ys).all(axis=1))
        ys = np.full_like(asked.ys, np.nan)
        if label not in self.records_:
            starts = np.array([record.ys[0] for record in self.records_.values()])
            is_measured = bool(np.isfinite(asked.ys[first]).all())
            ys[first if is_measured else 0] = asked.ys[first] if is_measured else np.nanmean(starts, axis=0)
            return asked._replace(ys=ys)
        stored = self.records_[label]
        ts, order = np.unique(np.concatenate([stored.ts, asked.ts]), return_index=True)
        return RecordRows(ts, np.concatenate([stored.ys, ys])[order], np.concatenate([stored.us, asked.us])[order])


def find_column(given: int | str, names: Sequence[str], role: str) -> int:
    """Returns the index of a column.

    **Raises:** `ValueError` for an unknown column.
    """
    if isinstance(given, str):
        if given not in names:
            raise ValueError(f"{role} names the column {given!r}, but those of X are {', '.join(names)}.")
        return names.index(given)
    if not -len(names) <= given < len(names):
        raise ValueError(f"{role}={given} is no column of X, which has {len(names)}.")
    return given % len(names)


def take_record(rows: Rows, ys: np.ndarray, label: str) -> RecordRows:
    """Returns the rows of a trajectory in order of time, averaging those at the same time."""
    places = np.flatnonzero(rows.labels == label)
    ts, first, group = np.unique(rows.ts[places], return_index=True, return_inverse=True)
    finite = np.isfinite(ys[places])
    counts = np.stack([np.bincount(group, column, len(ts)) for column in finite.T], axis=1)
    sums = np.stack([np.bincount(group, column, len(ts)) for column in np.where(finite, ys[places], 0.0).T], axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return RecordRows(ts, means, rows.us[places][first])


def as_dataset(records: dict[str, RecordRows], states: Sequence[str], inputs: Sequence[str], time: str) -> Dataset:
    """Returns a dataset of trajectories by name."""
    return Dataset.from_arrays(
        [record.ts for record in records.values()],
        [record.ys for record in records.values()],
        [record.us for record in records.values()],
        states=list(states),
        inputs=list(inputs),
        trajectories=list(records),
        time=time,
    )
