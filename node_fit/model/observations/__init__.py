"""Observations: the measured channels as functions of the states."""
