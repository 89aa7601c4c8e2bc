"""What is proved about a traced graph: reads in range, well-founded recurrences, bounds of a call."""
