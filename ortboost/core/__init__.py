"""The foundation: errors, reports, files, loss-scale policies. It imports nothing above it."""
