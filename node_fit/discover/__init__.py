"""Equations found from measurements: terms, candidates of each state, and their judgement by simulation."""
