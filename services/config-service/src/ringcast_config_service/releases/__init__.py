"""Releases of rows: staged, published in waves behind gates, proven, undone."""
