"""Trains and evaluates the model of an experiment, with the stages around both."""
