"""The embedded server: a process that serves one small model."""
