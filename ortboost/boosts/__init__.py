"""One file a boost."""
