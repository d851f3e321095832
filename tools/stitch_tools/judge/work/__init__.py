"""Evidence of who did the work: PyTorch, a vendor library, or code of the program."""
