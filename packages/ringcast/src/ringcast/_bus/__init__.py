"""NATS: the connection, and everything that is said and heard over it. No other room knows the client."""
