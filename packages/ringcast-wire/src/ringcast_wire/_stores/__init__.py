"""What is decided for a store: how partitions are assigned, what it allows, and how releases are published."""
