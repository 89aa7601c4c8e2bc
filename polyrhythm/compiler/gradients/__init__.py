"""Gradients: from a graph with `grad` nodes to an ordinary graph."""
