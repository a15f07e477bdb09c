"""The HTTP APIs that the proxy speaks, each a module for its requests and one for its replies."""
