"""The last-known-good rows of a worker on its disk."""
