"""Jobs between parties with different rows of the same columns."""
