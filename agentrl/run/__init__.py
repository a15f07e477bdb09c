"""One training run: its directory, its trainer, its metrics, and what is proved of it afterwards."""
