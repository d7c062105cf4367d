"""Rewrites of inference graphs, one a file; ``ortboost.deploy.pipeline`` holds their order."""
