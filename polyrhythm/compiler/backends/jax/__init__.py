"""The JAX backend: what has no host calls becomes one XLA program, with axes of unknown length padded to a capacity."""
