"""Code that several binaries share: their flags, the frame of a command, searches, models of shards, plots, timing."""
