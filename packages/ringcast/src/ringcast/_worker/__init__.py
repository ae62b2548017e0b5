"""A running worker, and how it is."""
