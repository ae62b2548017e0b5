"""The gRPC API: who may call, and what goes in and out."""
