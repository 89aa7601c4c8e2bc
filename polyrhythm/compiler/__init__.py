"""The compiler: from a traced graph to loops that a backend runs. Start with `pipeline.py`."""
