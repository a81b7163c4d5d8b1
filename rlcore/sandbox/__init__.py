"""Runs Python programs that nobody trusts: one protocol, several levels of confinement."""
