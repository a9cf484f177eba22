"""Programs that turn texts into ids without TensorFlow; exports hold a copy of the programs."""
