"""Ready workflows: run them as they are, or copy one as a start."""
