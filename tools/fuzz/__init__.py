"""Damaged files for the command line."""
