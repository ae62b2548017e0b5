"""Fetches of partitions over NATS."""
