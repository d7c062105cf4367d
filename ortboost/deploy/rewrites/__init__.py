"""Rewrites of inference graphs, one per file; ``ortboost.deploy.pipeline`` orders them."""
