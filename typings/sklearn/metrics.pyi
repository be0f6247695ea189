"""What node_fit takes from scikit-learn's scores."""

import numpy as np

def r2_score(y_true: np.ndarray, y_pred: np.ndarray, *, sample_weight: np.ndarray | None = None) -> float: ...
