"""Variables by name: frozen, masked, averaged, in shards; and names of their rows."""
