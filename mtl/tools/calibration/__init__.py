"""Calibrates the probabilities of a trained network.

from mtl.tools import calibration
experiment.Experiment.refit = @calibration.Platt()
"""

from mtl.tools.calibration.fits import Calibration, Isotonic, Platt, Temperature

__all__ = ["Calibration", "Isotonic", "Platt", "Temperature"]
