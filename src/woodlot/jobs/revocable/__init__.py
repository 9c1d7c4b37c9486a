"""Jobs of revocable forests, and of keys under which splits are encrypted."""
