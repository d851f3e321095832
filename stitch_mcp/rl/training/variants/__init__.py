"""Programs with chosen variants: a policy too small to write a program chooses one, which is judged."""
