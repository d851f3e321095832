"""The stitcher, a Coder without a language model: captured graph -> plan -> typed kernel IR -> text."""
