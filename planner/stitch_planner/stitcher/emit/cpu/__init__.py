"""Kernel IR to C++ over the headers in native/include/stitch/cpu."""
