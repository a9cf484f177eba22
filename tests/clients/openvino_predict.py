"""Answers the requests of tests/clients/openvino.py, in an environment without this project.

    python openvino_predict.py PORTABLE_IDS REQUESTS REPLIES

The encoder that the export carries makes the inputs of rows, as a client of OpenVINO does.
"""

import pickle
import sys

import numpy as np
import openvino

# Without the hint, OpenVINO computes in bfloat16 on some processors.
_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}


def read(port, value):
    """Return an output, with texts as bytes; without rows, texts come as float64."""
    if port.get_element_type() != openvino.Type.string:
        return value
    texts = np.empty(value.size, object)
    texts[:] = [text.encode() for text in value.ravel()]
    return texts.reshape(value.shape)


def main(folder, requests, replies):
    """Write {"version", "answers": [{output: array}, or the text of an error]}."""
    sys.path.insert(0, folder)
    import encoder

    encode = encoder.Encoder(folder)
    compiled = openvino.Core().compile_model(openvino.convert_model(folder), "CPU", _FLOAT32)
    with open(requests, "rb") as file:
        asked = pickle.load(file)
    answers = []
    for columns in asked:
        try:
            outputs = compiled(encode(columns)).items()
            answers.append({n: read(port, value) for port, value in outputs for n in port.names})
        except (RuntimeError, ValueError) as error:
            answers.append(f"{type(error).__name__}: {error}")
    with open(replies, "wb") as file:
        pickle.dump({"version": openvino.__version__, "answers": answers}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
