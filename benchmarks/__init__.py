"""Benchmarks against hand-written peers, in the same process: `python -m benchmarks`."""
