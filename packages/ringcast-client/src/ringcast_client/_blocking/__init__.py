"""The same for code without an event loop."""
