"""Releases: staged, published, proven, undone."""
