"""Leases of the workers of a host."""
