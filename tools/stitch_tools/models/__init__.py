"""Facts that instruments return and the store keeps, one module a subject."""
