"""Precision, devices, processes, compiled programs and memory of a run."""
