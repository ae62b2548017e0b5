"""What all rooms share: errors, limits, names on the bus, wire versions, the rules for rows and labels, and waits."""
