"""The gRPC API: admission of callers, requests and answers."""
