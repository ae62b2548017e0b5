"""The only Ringcast process with a database: gRPC writes, outbox relay, NATS reads."""
