"""The demo of Ringcast: `make demo`."""
