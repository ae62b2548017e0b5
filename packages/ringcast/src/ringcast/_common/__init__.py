"""What every room uses: settings, changes as applications see them, counters, logging."""
