"""The judge: correctness, source, work, memory and timing evidence of one program, and the verdict."""
