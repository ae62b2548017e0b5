"""What all rooms share: input that is checked, records, and waits."""
