"""Kernels in C that XLA calls, for what its own code generator does slowly on a CPU."""
