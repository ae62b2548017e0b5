"""Writes on their way to the database, many in one transaction."""
