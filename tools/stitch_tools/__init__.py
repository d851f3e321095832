"""Instruments: describe, build, check, time and certify programs. The lowest layer; imports no other."""
