"""Forgetting rows between organisations: the label holder leads, and the forest is grown without them."""
