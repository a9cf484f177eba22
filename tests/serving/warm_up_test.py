"""Warm-up requests, read with the server's own messages and replayed by the server's own loader."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import named_tensor_pb2

from mtl.serving import loaded, rows, warm_up
from mtl.tf_internals import saved_model

PROGRAM = pathlib.Path(__file__).with_name("replay.cc")


def records(path):
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


def requests(export):
    return records(os.path.join(export, "assets.extra", "tf_serving_warmup_requests"))


@pytest.mark.medium
def test_the_requests_are_those_of_the_server(export, made):
    messages = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    examples = rows.read_rows(made.dataset, made.spec, 32).examples
    found = {}
    for record in requests(export):
        log = messages.PredictionLog.FromString(record)
        assert log.SerializeToString(deterministic=True)
        kind = log.WhichOneof("log_type")
        request = getattr(log, kind).request
        assert request.model_spec.name == "shop"
        found.setdefault(request.model_spec.signature_name, []).append((kind, request))
    signatures = saved_model.read(export).signature_def
    assert set(found) == set(signatures)
    for name, sent in found.items():
        kind = signatures[name].method_name.rpartition("/")[2]
        assert [sent_kind for sent_kind, _ in sent] == [f"{kind}_log"] * 2
        for count, (_, request) in zip((1, 32), sent, strict=True):
            if kind != "predict":
                given = request.input.example_list.examples
                assert [tf.train.Example.FromString(e) for e in examples[:count]] == list(given)
                continue
            assert set(request.inputs) == set(signatures[name].inputs)
            shapes = {key: tf.make_ndarray(value).shape for key, value in request.inputs.items()}
            assert {shape[0] for shape in shapes.values()} == {count}


def test_serving_messages_are_not_needed_to_write_them(export):
    """The messages that mtl declares also read the requests, without the server's package."""
    first = warm_up.PredictionLog.FromString(requests(export)[0])
    assert first.predict_log.request.model_spec.signature_name == "kind"


def test_no_more_requests_are_written_than_a_server_takes(export, made, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "MOST", 11)
    held_out = rows.read_rows(made.dataset, made.spec, 2)
    warm_up.write(str(tmp_path), "shop", saved_model.read(export).signature_def, held_out)
    logs = [warm_up.PredictionLog.FromString(record) for record in requests(tmp_path)]
    names = [log.predict_log.request.model_spec.signature_name for log in logs]
    # Signatures of single tasks are parts of these, so they get no requests.
    assert names[::2] == ["serving_default", "lean", "raw", "raw/lean", "kind"]
    assert names[1::2] == names[::2]


@pytest.fixture(scope="session")
def replay(tmp_path_factory):
    """The program, built against the headers and libraries of the TensorFlow that is installed."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler, so exports are not tried with the C++ loader")
    program = tmp_path_factory.mktemp("replay") / "replay"
    library = tf.sysconfig.get_lib()
    libraries = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
    subprocess.run(
        [
            *(compiler, "-O0", "-w", str(PROGRAM), "-o", str(program)),
            *tf.sysconfig.get_compile_flags(),
            *(f"-L{library}", "-Wl,--no-as-needed", f"-Wl,-rpath,{library}"),
            *(f"-l:{name}" for name in libraries),
        ],
        check=True,
    )
    return program


def replayed(program, export, outputs):
    """{(request, signature, output): value} of the C++ loader."""
    done = subprocess.run([program, export, outputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {tuple(key.split(":")): value for key, value in map(_named, records(outputs))}


def _named(record):
    named = named_tensor_pb2.NamedTensorProto.FromString(record)
    return named.name, tf.make_ndarray(named.tensor)


@pytest.mark.slow
def test_the_loader_of_the_server_answers_as_the_estimator_predicts(replay, export, made, tmp_path):
    found = replayed(replay, export, tmp_path / "outputs")
    predicted = made.predictions()
    held_out = rows.read_rows(made.dataset, made.spec, 32)
    with loaded.load_export(export) as model:
        kinds = {
            name: name.rpartition("/")[2] in ("classify", "regress") for name in model.signatures
        }
        python = model([name for name, kind in kinds.items() if kind], held_out.examples)
    compared = set()
    for (_, name, key), value in found.items():
        task = name.removeprefix("raw/")
        wanted = predicted.get(key, predicted.get(f"{task}/{key}", python.get((name, key))))
        if key == "id":
            wanted = held_out.dense("id")
        compared.add((name, key, len(value)))
        wanted = wanted[: len(value)]
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5, err_msg=f"{name} {key}")
        else:
            np.testing.assert_array_equal(value, wanted, err_msg=f"{name} {key}")
    signatures = saved_model.read(export).signature_def
    assert compared == {
        (name, key, count)
        for name, signature in signatures.items()
        for key in signature.outputs
        for count in (1, 32)
    }


@pytest.mark.slow
def test_the_loader_of_the_server_says_what_it_cannot_load(replay, export, tmp_path):
    broken = shutil.copytree(export, tmp_path / "broken")
    shutil.rmtree(broken / "variables")
    done = subprocess.run([replay, broken, tmp_path / "x"], capture_output=True, text=True)
    assert done.returncode == 1 and "does not exist" in done.stderr
