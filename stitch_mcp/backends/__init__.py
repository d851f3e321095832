"""Where long work is done side by side: worker processes of this machine, or supervisors on a Ray cluster."""
