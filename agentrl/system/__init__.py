"""Tools over anyio and the operating system that several parts share: tasks, processes, files, locks, and the text of failures."""
