"""A server of the operator that is asked before a release is published. Only a clear yes of it counts."""
