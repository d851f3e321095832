"""What imports torch, transformers, peft and trl. It runs in a process of its own, never in the command line's."""
