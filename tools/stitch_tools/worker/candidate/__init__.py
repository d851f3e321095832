"""The worker: holds one candidate program and runs it on inputs that it is given.

It never sees the reference, the input stream's seeds or an expected output.
"""
