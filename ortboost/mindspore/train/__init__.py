"""``Model``, its callbacks and checkpoints under MindSpore's names."""
