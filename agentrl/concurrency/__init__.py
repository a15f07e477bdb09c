"""Tools over anyio and processes that several parts share: tasks, threads, children, and the event loop."""
