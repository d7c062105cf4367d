"""What everything else stands on: errors, reports, files, loss-scale policies. It knows nothing above it."""
