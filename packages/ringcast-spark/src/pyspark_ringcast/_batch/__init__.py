"""Reads and writes of a DataFrame."""
