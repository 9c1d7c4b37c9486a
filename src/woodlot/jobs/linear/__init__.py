"""Jobs of linear models over columns."""
