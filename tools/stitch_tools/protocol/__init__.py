"""What the controller and its children exchange: frames, messages, memory. Standard library only."""
