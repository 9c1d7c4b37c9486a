"""What every other package may build on: files on disk."""
