"""What runs in the user's interpreter: torch and the standard library only.

Python >= 3.10 and torch >= 2.6 are supported here.
"""
