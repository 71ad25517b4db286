"""Components in memory: composed, merged, added up; no file, no URL."""
