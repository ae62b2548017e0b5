"""What can go wrong in the service itself; everything that travels to a client is in :mod:`ringcast_wire`."""

from __future__ import annotations


class ConfigError(Exception):
    """The service can't start with these settings; ``str(error)`` is one sentence for the operator."""
