"""Operations on an experiment: train, evaluate, predict, prune, audit, debug and export it."""
