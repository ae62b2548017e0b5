"""The statements of both databases."""
