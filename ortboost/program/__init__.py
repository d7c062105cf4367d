"""The boosted training program: step graph, evaluation graph, state and manifest."""
