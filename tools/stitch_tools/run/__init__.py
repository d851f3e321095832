"""The controller's side of processes: find the target interpreter, start its zygote, talk to its children."""
