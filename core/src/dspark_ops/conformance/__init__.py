"""The checks that a kernel must pass, for its author and for this project alike."""
