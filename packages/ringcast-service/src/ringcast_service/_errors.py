"""The error of a process that can't start."""

from __future__ import annotations


class ConfigError(Exception):
    """The process can't start with these settings; ``str(error)`` is one sentence for the operator."""
