"""Plots of a fit."""
