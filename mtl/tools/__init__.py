"""Tools inspect runs, or act during a training. Training, evaluation and export need no tools."""
