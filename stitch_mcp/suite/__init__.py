"""Many references solved as one sweep: tasks, rows that outlast an interruption, a summary."""
