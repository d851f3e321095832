"""Similarity of meaning: embedding model and chromadb live in one child process, never in ours."""
