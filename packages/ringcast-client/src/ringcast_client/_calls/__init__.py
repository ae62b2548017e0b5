"""Calls of the config service, with retries and fail-over, and the stream of single changes."""
