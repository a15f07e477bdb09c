"""A client of SGLang's HTTP API, over several servers."""
