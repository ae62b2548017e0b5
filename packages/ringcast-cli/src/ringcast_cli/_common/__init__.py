"""What every command needs: configuration, options, output, exit codes, the client."""
