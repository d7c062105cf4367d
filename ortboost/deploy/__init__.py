"""From a trained program to an inference graph that answers as the trained model does."""
