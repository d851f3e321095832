"""Language models behind one protocol: an endpoint, a person with two files, or recorded answers."""
