"""Trains and evaluates the model of an experiment, with all preparations and exports."""
