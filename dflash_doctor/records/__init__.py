"""The frozen types that the rooms hand to each other; standard library only, no I/O."""
