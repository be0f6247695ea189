"""The version of node_fit, defined only here; package metadata and all written files take it from here."""

__version__ = "0.2.0"
