"""Commands on stores and keys, and on what could not be delivered."""
