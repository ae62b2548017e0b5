"""Sealed values: the algorithm, and the file of a key ring."""
