"""Expressions: trees of numbers, names and operations, read from text, evaluated, and written."""
