"""The roles that a language model takes in a run."""
