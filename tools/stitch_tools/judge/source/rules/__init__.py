"""The rules: small functions from a parsed program to the places that they mean."""
