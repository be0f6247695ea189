"""Fits in the words of other libraries."""
