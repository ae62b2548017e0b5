"""Who takes part in a store, who lives, and who owns what."""
