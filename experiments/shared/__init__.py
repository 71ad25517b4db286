"""Code that experiments share beyond that of commands: searches, pools of models, ways of removal, timing."""
