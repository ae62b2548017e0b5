"""Registers this instance in a metadata store, over NATS KV or etcd."""
