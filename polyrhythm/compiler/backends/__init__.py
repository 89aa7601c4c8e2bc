"""Backends lower the Loop IR to running code: one package each, which knows its array library and no other does."""
