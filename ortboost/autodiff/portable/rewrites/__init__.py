"""Rewrites of a forward graph before the portable engine differentiates it, one file per kind."""
