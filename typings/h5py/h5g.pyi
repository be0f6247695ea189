from .h5l import LinkProxy

class GroupID:
    links: LinkProxy
