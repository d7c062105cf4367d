"""A zoo of models that nobody here made: gathered, trained, exported, and put into one table."""
