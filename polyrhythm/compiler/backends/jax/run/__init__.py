"""How compiled XLA programs are driven: growing buffers, streams, host functions, caches, calibration."""
