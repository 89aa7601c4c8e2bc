"""Automatic mutants of the compiler: small changes, each of which some test has to notice. `make mutants` runs them."""
