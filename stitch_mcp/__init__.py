"""stitch-mcp: from a PyTorch reference to a verified, faster native program."""

__version__ = "0.1.0"
