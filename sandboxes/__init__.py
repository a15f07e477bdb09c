"""Places to run model-written code. The package is reserved; nothing is in it yet."""
