"""Draws from the posterior of a fit."""
