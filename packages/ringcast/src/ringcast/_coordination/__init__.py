"""The workers of a store: registration, leases, and the assignment of partitions."""
