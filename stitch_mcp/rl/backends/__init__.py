"""Where submissions are judged: worker processes of this machine, or a Ray cluster."""
