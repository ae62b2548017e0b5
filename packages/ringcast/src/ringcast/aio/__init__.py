"""The asynchronous Dapr-shaped client."""

from __future__ import annotations

from ringcast._dapr.aio import DaprClient
from ringcast._dapr.response import ConfigurationItem, ConfigurationResponse

__all__ = ["ConfigurationItem", "ConfigurationResponse", "DaprClient"]
