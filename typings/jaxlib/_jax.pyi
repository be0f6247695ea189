"""The compiled part of jaxlib, which ships no stubs."""

from typing import Any

class Device:
    id: int
    platform: str
    device_kind: str
    process_index: int
    def memory_stats(self) -> dict[str, int] | None: ...

def __getattr__(name: str) -> Any: ...
