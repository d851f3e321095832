"""What lies on disk: content-addressed store, event log, locks, scratch folders, certificates."""
