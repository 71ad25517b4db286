"""Code that experiments share, besides that of commands: searches, pools of models, ways of removal, timing."""
