"""Who does a program's work: sampled stacks, traced kernels, and counted launches of its own binary.

All of it runs in the candidate's own process, in a worker that is never timed, and is a claim like all that
a worker says: it convicts nobody who attacks the tracer, and it shows who did the work where nobody does.
"""

UNWATCHED = "threads that are made anew"
"""Name of what no sample can be taken of."""
