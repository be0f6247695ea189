TYPE_HARD: int

class LinkInfo:
    type: int

class LinkProxy:
    def get_info(self, name: bytes) -> LinkInfo: ...
