"""Headers become chunks: a tolerant lexer, the comments' markup, declarations, and what belongs together."""
