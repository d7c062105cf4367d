"""The portable engine: reverse-mode differentiation in standard operators only."""
