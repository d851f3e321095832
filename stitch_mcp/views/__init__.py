"""What people read on a terminal: tables and sections made from facts."""
