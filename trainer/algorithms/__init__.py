"""Objectives, advantages and losses: pure functions, each with its formula and its source."""
