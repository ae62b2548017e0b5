"""The client of the config service."""
