"""Jobs between parties with different columns of the same rows: align, train, predict, take a party out."""
