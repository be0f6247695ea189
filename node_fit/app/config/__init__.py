"""Builds objects from a composed config."""
