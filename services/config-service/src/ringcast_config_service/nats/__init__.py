"""What the service does on the bus: events published, fetches answered, streams kept."""
