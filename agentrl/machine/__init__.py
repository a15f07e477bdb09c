"""Tools over the operating system that several parts share: files that last, shared memory, limits, privacy."""
