"""Code that several binaries share: flags, the frame of a command, searches, models of shards, plots, timing."""
