"""Instruments: describe, build, check, time and certify programs. The lowest layer; imports no other."""

__version__ = "0.2.0"
