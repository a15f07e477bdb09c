"""Where sandboxes come from: Docker, bubblewrap, or, unsafely, plain processes."""
