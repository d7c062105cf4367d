"""``Model``, its callbacks and checkpoints with MindSpore's API."""
