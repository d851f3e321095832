"""A run as one HTML file: facts are read, turned into tables, diffs and a chart, and rendered."""
