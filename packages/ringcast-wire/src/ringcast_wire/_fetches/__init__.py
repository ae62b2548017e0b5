"""Fetches of rows: what is sent, how the reply is written, and how it is taken."""
