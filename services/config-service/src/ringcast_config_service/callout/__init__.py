"""Says to NATS what a worker with a token may do: NATS's auth callout."""
