"""Finds variables by name; freezes, masks, averages and shards them; names the rows of tables."""
