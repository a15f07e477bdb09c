"""What several parts need of anyio and of processes: tasks, threads, children, and the loop that they share."""
