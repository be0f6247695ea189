"""Scores of a model on data."""

from ..data.dataset import Dataset, check_data
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from . import metrics
from .metrics import Score


def score(model: NeuralODE | Ensemble, data: Dataset) -> Score:
    """How well a model's simulated trajectories match the measured ones, in the user's units.

    ```python
    print(node_fit.score(node_fit.load("model.safetensors"), data))
    ```

    **Arguments:**

    - `model`: such as `fit.model`, or a model that was loaded.
    - `data`: measurements; rows that starts are read from do not count.

    **Raises:** `ValueError` if the channels are not those of the fit.
    """
    return metrics.score(scored(model, data), model.predict(data))


def scored(model: NeuralODE | Ensemble, data: Dataset) -> Dataset:
    """The data, of which the rows that starts are read from do not count."""
    check_data(data, "data")
    return model.typical.start.scored(model.typical.scaler.marked(data))
