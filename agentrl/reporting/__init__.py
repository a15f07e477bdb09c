"""How a failure is told: its text, the line of the user's code that it comes from, and the log."""
