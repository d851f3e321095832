"""The captured graph prepared for lowering: simplified, partitioned into steps, laid out in memory."""
