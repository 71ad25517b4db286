"""What every other package stands on: notation, trees, messages, files, progress."""
