"""From a program and its tests to a verdict."""
