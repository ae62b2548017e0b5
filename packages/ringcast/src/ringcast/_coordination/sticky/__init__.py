"""Exclusive ownership over NATS: the coordinator of a worker, its session, the records, and the leader of a key."""
