"""Who does a program's work, by PyTorch's own profiler: operators on a CPU, kernels by caller on a GPU.

All of it runs in the candidate's own process, in a worker that is never timed, and is a claim like all that
a worker says: it convicts nobody who attacks the profiler, and it shows who did the work where nobody does.
"""
