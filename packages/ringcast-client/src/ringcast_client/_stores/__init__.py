"""Stores, their keys and schemas, and what could not be delivered."""
