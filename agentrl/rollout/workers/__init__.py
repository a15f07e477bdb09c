"""Workflows in processes of their own."""
