"""Changes on their way through the application's handler, and what becomes of those that it can't take."""
