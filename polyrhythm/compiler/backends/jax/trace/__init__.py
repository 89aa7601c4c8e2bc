"""From Loop IR to a JAX trace: loops, lanes, buffers and the reads of them."""
