"""The tasks of a run: their sources and forms, and which of them each group gets."""
