"""Tokens of issuers (OpenID Connect): which are accepted, by which keys, and whose they are."""
