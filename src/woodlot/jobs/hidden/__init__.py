"""Hidden trainings between organisations: on secret shares, and no message tells which row goes where."""
