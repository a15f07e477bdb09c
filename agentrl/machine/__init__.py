"""What several parts need of the operating system: files that last, shared memory, limits, and what is private."""
