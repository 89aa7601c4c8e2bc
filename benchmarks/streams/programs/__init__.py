"""Layers of language models, each written once as recurrent tensors, for every backend and for streams."""
