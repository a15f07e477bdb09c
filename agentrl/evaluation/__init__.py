"""Evaluate a policy, or any other endpoint, on tasks."""
