"""The viewer: runs on a page over HTTP, and in files that it exports."""
