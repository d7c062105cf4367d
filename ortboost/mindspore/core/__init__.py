"""Networks, cells, parameters and tensors under MindSpore's names."""
