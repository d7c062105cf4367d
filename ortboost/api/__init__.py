"""The verbs as typed functions: convert, train, evaluate, export, compare, inspect, bench, check, doctor."""
