"""Where the time and the memory of a step go, in the words of a step; docs/profiling.md.

experiment.Run.profile = [100, 110]
"""
