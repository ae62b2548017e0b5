"""Commands that say what is wrong, and where."""
