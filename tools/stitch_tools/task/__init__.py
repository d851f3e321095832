"""Tasks: references as users name them, task files, and the contract that both make."""
