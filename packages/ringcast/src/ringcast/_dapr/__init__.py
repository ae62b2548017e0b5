"""The clients that are shaped like Dapr's."""
