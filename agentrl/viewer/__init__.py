"""What shows a run to people: a page over HTTP, and the files that it exports."""
