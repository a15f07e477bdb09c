"""One training run: its directory, its trainer, its figures, and what is proved of it afterwards."""
