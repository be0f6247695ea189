"""Populations: nonlinear mixed effects, whose constants differ between trajectories and share a distribution."""
