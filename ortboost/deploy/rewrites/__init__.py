"""Rewrites of inference graphs, one a file; the order they run in is in ``ortboost.deploy.pipeline``."""
