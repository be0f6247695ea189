from collections.abc import Callable

from .h5g import GroupID

TYPE_GROUP: int
TYPE_DATASET: int

class ObjInfo:
    type: int

def get_info(loc: GroupID, name: bytes) -> ObjInfo: ...
def visit(loc: GroupID, func: Callable[[bytes, ObjInfo], object], *, info: bool = False) -> object: ...
