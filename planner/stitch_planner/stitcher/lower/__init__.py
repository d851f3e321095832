"""From planned steps to the typed kernel IR that all targets share."""
