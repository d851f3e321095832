"""The binding of built programs; partial programs bring a copy of it, so that they stand alone."""
