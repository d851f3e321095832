"""Profiles: where a reference's or a program's time goes, on the host, on the device and in each kernel."""
