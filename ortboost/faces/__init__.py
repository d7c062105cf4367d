"""What the MindSpore faces (``nn``, ``amp``, ``Model``...) share: checks, cells, live state, callbacks."""
