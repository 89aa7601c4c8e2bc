"""Generated Python: the emitter, and the backend that runs it with NumPy."""
