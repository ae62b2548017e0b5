"""Says in a metadata store, over NATS KV or etcd, that this instance is there, and how it is."""
