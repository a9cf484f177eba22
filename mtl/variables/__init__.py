"""Variables by name: frozen, masked, averaged, in shards; and what their rows stand for."""
