"""Programs that run inside a box. They import the standard library alone: a box has nothing else for certain."""
