"""Exclusive ownership: its times, and the steps by which a store comes to it."""
