"""What node_fit takes from PyYAML, of whose hints that of `parse` leaves unknown what it reads."""

from collections.abc import Iterator
from typing import IO, Any

class Event: ...
class AliasEvent(Event): ...

class Mark:
    name: str
    line: int
    column: int

class YAMLError(Exception): ...

class MarkedYAMLError(YAMLError):
    problem: str | None
    problem_mark: Mark | None

def parse(stream: str) -> Iterator[Event]: ...
def safe_load(stream: str | bytes | IO[str] | IO[bytes]) -> Any: ...
def __getattr__(name: str) -> Any: ...
