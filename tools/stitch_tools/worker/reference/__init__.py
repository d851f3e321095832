"""The reference server: holds the user's module, makes inputs, knows the expected outputs and compares.

It never loads a candidate. Handlers are listed in `reference_operations.py`.
"""
