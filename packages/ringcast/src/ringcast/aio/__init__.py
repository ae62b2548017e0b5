"""The asynchronous Dapr-shaped client."""

from __future__ import annotations

from ringcast._dapr_response import ConfigurationItem, ConfigurationResponse
from ringcast.aio._client import DaprClient

__all__ = ["ConfigurationItem", "ConfigurationResponse", "DaprClient"]
