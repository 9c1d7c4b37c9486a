"""What organisations order: the kinds of job, and the messages about them."""
