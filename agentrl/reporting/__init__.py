"""Report failures: their text, the line of the user's code that they come from, and the log."""
