"""The nodes of a Ray cluster as machines on which a run starts processes. The only room that imports Ray."""
