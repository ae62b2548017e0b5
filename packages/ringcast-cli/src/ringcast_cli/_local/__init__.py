"""Ringcast on this machine, and its shell."""
