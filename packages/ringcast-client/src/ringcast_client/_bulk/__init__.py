"""Many rows in one call."""
