"""What travels on the bus and stands in its buckets: events, requests, replies and their chunks, records."""
