"""A drill for the fuzzer: deliberate miscompilations, each of which it has to find. `make drill` runs it."""
