"""What node_fit takes from PyYAML, of whose hints that of `parse` leaves unknown what it reads."""

from collections.abc import Iterator
from typing import IO, Any

class Mark:
    name: str
    line: int
    column: int

class Event:
    start_mark: Mark

class AliasEvent(Event): ...
class CollectionStartEvent(Event): ...
class CollectionEndEvent(Event): ...

class ScalarEvent(Event):
    value: str

class Node:
    value: Any
    start_mark: Mark

class ScalarNode(Node):
    value: str

class MappingNode(Node):
    value: list[tuple[Node, Node]]

class BaseLoader:
    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]: ...

class SafeLoader(BaseLoader): ...
class YAMLError(Exception): ...

class MarkedYAMLError(YAMLError):
    problem: str | None
    problem_mark: Mark | None

def parse(stream: str, Loader: type[BaseLoader] = ...) -> Iterator[Event]: ...
def load(stream: str, Loader: type[BaseLoader]) -> Any: ...
def safe_load(stream: str | bytes | IO[str] | IO[bytes]) -> Any: ...
def __getattr__(name: str) -> Any: ...
