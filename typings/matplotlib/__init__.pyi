"""What node_fit takes from Matplotlib that its own hints leave unknown."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

def rc_context(rc: Mapping[str, object]) -> AbstractContextManager[None]: ...
