"""The report round, in which workers say how far they are, with what a release asks of a canary."""
