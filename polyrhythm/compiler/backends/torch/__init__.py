"""The torch backend: generated Python over preallocated tensors of exact shapes."""
