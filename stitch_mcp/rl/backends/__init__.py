"""Batches of submissions, judged by a pool of workers and kept by content."""
