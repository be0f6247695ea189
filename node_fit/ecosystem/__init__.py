"""Interfaces to other libraries."""
