"""The SQL statements of both databases, and how they are read."""
