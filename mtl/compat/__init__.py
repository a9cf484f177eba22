"""Makes `tf.estimator` available on every TensorFlow from 2.15 on.

TensorFlow dropped `tf.estimator` in 2.16. The last release of tensorflow-estimator still works on
later versions of TensorFlow, except that it needs a few names which TensorFlow removed as well.
`import mtl.compat` adds the missing names to TensorFlow. No other package of mtl imports
tensorflow_estimator.

    from mtl import compat          # before or after `import tensorflow`
    compat.estimator.Estimator      # the v2 names; tf.estimator is the same module
    compat.estimator_v1.Estimator   # tf.compat.v1.estimator
"""

from typing import TYPE_CHECKING

from mtl.compat import install

if TYPE_CHECKING:
    # Type checkers cannot look up names in the modules that `install` returns.
    from tensorflow_estimator.python.estimator.api._v1 import estimator as estimator_v1
    from tensorflow_estimator.python.estimator.api._v2 import estimator
else:
    estimator, estimator_v1 = install.install()
