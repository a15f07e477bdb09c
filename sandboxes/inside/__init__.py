"""Programs that run inside a sandbox. They import the standard library alone: a sandbox has nothing else for certain."""
