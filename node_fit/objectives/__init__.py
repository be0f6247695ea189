"""Objectives, which training minimises."""
