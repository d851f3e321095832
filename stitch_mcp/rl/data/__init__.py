"""Data for training: tasks made and filtered, samples from runs, splits without leakage, exports."""
