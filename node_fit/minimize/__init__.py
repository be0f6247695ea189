"""Least-squares solvers, compiled and on the host, and their initial points."""
