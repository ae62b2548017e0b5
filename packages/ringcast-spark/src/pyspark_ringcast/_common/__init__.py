"""What batches and streams share: options, columns, revisions."""
