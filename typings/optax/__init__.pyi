"""What node_fit takes from Optax, as its source hints it; it ships without a mark that these hints count."""

from collections.abc import Callable
from typing import Any, TypeVar

from jax import Array
from jax.typing import ArrayLike
from optax import tree as tree
from optax._src.alias import adam as adam
from optax._src.alias import lbfgs as lbfgs
from optax._src.base import GradientTransformation as GradientTransformation
from optax._src.base import GradientTransformationExtraArgs as GradientTransformationExtraArgs
from optax._src.base import Schedule as Schedule
from optax._src.base import with_extra_args_support as with_extra_args_support
from optax._src.linesearch import scale_by_backtracking_linesearch as scale_by_backtracking_linesearch
from optax._src.transform import ScaleByLBFGSState as ScaleByLBFGSState
from optax._src.transform import ScaleByScheduleState as ScaleByScheduleState
from optax._src.transform import scale as scale
from optax._src.transform import scale_by_adam as scale_by_adam
from optax._src.transform import scale_by_lbfgs as scale_by_lbfgs
from optax._src.transform import scale_by_learning_rate as scale_by_learning_rate
from optax.schedules import constant_schedule as constant_schedule
from optax.schedules import cosine_decay_schedule as cosine_decay_schedule
from optax.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from optax.transforms import add_decayed_weights as add_decayed_weights
from optax.transforms import chain as chain
from optax.transforms import clip_by_global_norm as clip_by_global_norm

T = TypeVar("T")

def apply_updates(params: T, updates: Any) -> T: ...
def value_and_grad_from_state(value_fn: Callable[[Any], ArrayLike]) -> Callable[..., tuple[Array, Any]]: ...
def __getattr__(name: str) -> Any: ...
