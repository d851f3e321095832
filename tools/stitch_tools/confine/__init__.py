"""Isolation of child processes: namespaces, files, system calls, supervision. Standard library only."""
