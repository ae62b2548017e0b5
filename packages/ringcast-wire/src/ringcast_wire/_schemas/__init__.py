"""Schemas of values: their kinds, and what checks and compares those of each."""
