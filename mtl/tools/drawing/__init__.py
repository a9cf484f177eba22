"""Pictures of the scalars that a run has measured."""
