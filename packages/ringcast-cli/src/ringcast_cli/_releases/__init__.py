"""Commands on releases."""
