"""The operators: each file holds, side by side, shape rule, metrics and run-time steps of one family."""
