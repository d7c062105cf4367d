"""The portable engine: reverse-mode differentiation by our own rules, in standard operators only."""
