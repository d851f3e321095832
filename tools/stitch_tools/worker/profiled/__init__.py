"""A reference or program in a process of its own under a profiler: this process is never timed."""
