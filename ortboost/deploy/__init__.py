"""From a trained program to an inference graph with the same outputs as the trained model."""
