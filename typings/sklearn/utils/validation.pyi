"""What node_fit takes from scikit-learn's checks."""

import numpy as np
from numpy.typing import NDArray

def check_array(
    array: object,
    *,
    dtype: type = ...,
    ensure_2d: bool = True,
    ensure_all_finite: bool | str = True,
    ensure_min_samples: int = 1,
    input_name: str = "",
    estimator: object = None,
) -> NDArray[np.float64]: ...
def check_is_fitted(estimator: object) -> None: ...
def validate_data(estimator: object, X: object, *, reset: bool, skip_check_array: bool) -> object: ...
