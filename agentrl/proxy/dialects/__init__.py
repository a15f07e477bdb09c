"""The HTTP APIs that the proxy speaks, each a module: what it takes, the messages that it stands for, and the replies in its words."""
