"""The table of metrics: those of workers, of exclusive ownership and of the config service."""
