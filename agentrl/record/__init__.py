"""The token record: what the engine returned, the tree that it becomes, and what each turn of it is worth."""
