"""Dapr's Configuration API."""
