"""Shows weights, gradients, curves and other items of a run in TensorBoard.

Each item, such as the histograms of weights, has its own setting, which switches the item on.

from mtl import experiment
from mtl.tools import tensorboard
experiment.Experiment.tensorboard = @tensorboard.TensorBoard()
tensorboard.TensorBoard.weights = True                 # at every Run.summary_steps
tensorboard.TensorBoard.gradients = [100, 110]         # or at chosen steps
tensorboard.TensorBoard.activations = 500              # or every 500 steps
"""

from mtl.tools.tensorboard.board_hooks import TensorBoard

__all__ = ["TensorBoard"]
