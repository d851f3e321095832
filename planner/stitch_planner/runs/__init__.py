"""Runs on disk: events, the state that is replayed from them, folders and readable copies."""
