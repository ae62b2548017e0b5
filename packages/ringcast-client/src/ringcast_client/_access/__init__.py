"""Who may do what, and who has done it."""
