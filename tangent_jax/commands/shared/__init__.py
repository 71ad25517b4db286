"""Code that commands and experiments share; importing it defines no flag."""
