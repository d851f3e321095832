"""What imports torch, transformers, peft and trl: it runs in a process of its own."""
