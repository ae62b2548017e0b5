"""How a process logs in to NATS and to the config service, and keeps its connections."""
