"""Explanations: the label holder leads, divides answers among parties and columns, and seals them to the user."""
