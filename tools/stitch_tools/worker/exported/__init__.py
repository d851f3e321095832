"""What `stitch-mcp export` puts beside a program: its build, and a guard that falls back to the reference."""
