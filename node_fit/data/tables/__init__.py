"""Reads tables of any supported layout into datasets."""
