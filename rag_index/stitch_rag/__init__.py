"""Memory: the documentation index. Empty until the search engine lands; the layer orders imports."""
