"""The bus: what is said and heard over it. No other room knows a client of NATS."""
