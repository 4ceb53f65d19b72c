"""The check of `millrace validate --eager`: the model's functions run line by line, so that a debugger works in them.

Nothing is traced or compiled meanwhile: functions of TensorFlow run as Python, and `preprocess` is called without
tf.data. What the model learns from its one batch is dropped with it.
"""

import keras
import tensorflow as tf

from millrace.app.service.model_setup import model_file
from millrace.app.settings import Settings
from millrace.app.tools.validate.check import CheckResult, fail, ok
from millrace.consumers.errors import MillraceError
from millrace.pipelines.shaping.augmentation import Augmentation
from millrace.pipelines.stream.dataset import flat_preprocess
from millrace.training.errors import ModelError
from millrace.training.model.call.compiled_call import as_the_model_takes_it
from millrace.training.model.probes import ProbeRows, ReadSample
from millrace.training.model.setup.model_file import load, where_raised

_FUNCTIONS = ("preprocess", "augment")


def eager_check(settings: Settings, samples: tuple[ReadSample, ...] = ()) -> CheckResult:
    """Run `preprocess`, `augment` and a training step once, on real records where there is a sample of them."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # noqa: FBT003 - TensorFlow's own signature
    try:
        return ok("eager", _run(settings, samples))
    except MillraceError as error:
        function, cause, problem = str(error).partition(":")[0], error.__cause__, error
        if cause is not None and function in _FUNCTIONS:
            problem = ModelError(f"{function} raised {where_raised(cause, settings.model.build.file)}")
        return fail("eager", problem)
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
        return fail("eager", ModelError(f"the model raised {where_raised(error, settings.model.build.file)}"))
    finally:
        tf.config.run_functions_eagerly(before)


def _run(settings: Settings, samples: tuple[ReadSample, ...]) -> str:
    size = settings.training.numbers.batch_size
    functions = load(model_file(settings))
    keras.utils.set_random_seed(settings.training.seed)
    probes = ProbeRows(settings.row_schema, size, samples)
    probe = probes.batch()
    features, labels, weights = flat_preprocess(
        functions.preprocess,
        {name: tf.constant(column) for name, column in probe.features.items()},
        {name: tf.constant(column) for name, column in probe.labels.items()},
        tf.ones(size),
    )
    if functions.augment is not None:
        augmentation = Augmentation(functions.augment)
        features, labels, weights = augmentation(features, labels, weights, tf.zeros(2, tf.int64))
    model = functions.build()
    model.run_eagerly = True
    x, y, w = as_the_model_takes_it(model, features, labels, weights)
    logs = model.train_on_batch(x, y, sample_weight=w, return_dict=True)
    names = ", ".join(name for name in _FUNCTIONS if getattr(functions, name) is not None)
    rows = "made-up rows" if probes.sample is None else "rows of sampled records"
    return (
        f"{names and f'{names} and '}one training step ran as plain Python on {size:,} {rows}, so print and "
        f"breakpoint() work in them; loss {float(logs['loss']):.4g}"
    )
