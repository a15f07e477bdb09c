"""The backends of sandboxes: Docker, bubblewrap, or, unsafely, plain processes."""
