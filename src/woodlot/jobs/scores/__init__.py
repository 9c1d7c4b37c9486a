"""Online scoring: a job that stays open."""
