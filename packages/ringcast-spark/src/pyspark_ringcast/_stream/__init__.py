"""Structured Streaming: a source of changes, and a sink."""
