"""The heartbeat agent: one a host. It speaks Dapr's Configuration API to the applications there."""

from __future__ import annotations
