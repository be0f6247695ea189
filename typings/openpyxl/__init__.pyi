"""What node_fit takes from openpyxl, which ships no hints."""

from collections.abc import Iterator
from typing import BinaryIO

class Worksheet:
    title: str
    def reset_dimensions(self) -> None: ...
    def iter_rows(self, *, values_only: bool) -> Iterator[tuple[object, ...]]: ...

class Workbook:
    worksheets: list[Worksheet]
    def __getitem__(self, name: str) -> Worksheet: ...

def load_workbook(filename: BinaryIO, *, read_only: bool, data_only: bool) -> Workbook: ...
