"""Networks, cells, parameters and tensors with MindSpore's API."""
