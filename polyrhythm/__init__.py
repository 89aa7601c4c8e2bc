"""Polyrhythm: a compiler for dynamic deep-learning programs."""
