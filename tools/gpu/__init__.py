"""For a machine with a GPU, and for one without."""
