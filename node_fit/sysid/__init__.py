"""Identification of linear systems, with which a network can begin."""
