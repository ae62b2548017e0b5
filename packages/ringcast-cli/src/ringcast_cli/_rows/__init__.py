"""Commands on the rows of a key, and the files that rows come from."""
