"""Changes shared out to the consumers of a group."""
