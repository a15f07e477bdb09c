"""The store of a run: every task handed out, every reply, every episode, and which checkpoint contains which batch."""
