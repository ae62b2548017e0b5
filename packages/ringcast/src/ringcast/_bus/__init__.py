"""The message bus of a worker. No other room imports a client of NATS."""
