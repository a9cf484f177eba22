"""Files: found by name, written whole or not at all, and proved to be as they were."""
