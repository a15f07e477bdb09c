"""The trainer: losses, advantages, packing, the trainer process and weight publishing."""
