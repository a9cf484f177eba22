"""Requests are joined, each gets its own rows, and a bad one harms nobody else."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from mtl.tools.serve import batching, failures, models, requests

LISTS = "raw"


@pytest.fixture(scope="module")
def model(base):
    loaded = models.Model.load("shop", 7, str(base / "7"))
    yield loaded
    loaded.close()


class Counted:
    """A model that notes the rows of its calls, and can be told to wait."""

    def __init__(self, model):
        self._model, self.calls = model, []
        self.is_open = threading.Event()
        self.is_open.set()

    def run(self, signature, inputs, outputs):
        self.is_open.wait(30)
        self.calls.append(len(next(iter(inputs.values()))))
        return self._model.run(signature, inputs, outputs)


def make(model, inputs, start, stop, signature="raw", outputs=()):
    part = {name: value[start:stop] for name, value in inputs.items()}
    return requests.make_request(model.find_signature(signature), part, list(outputs), 10**6)


def joined(counted, made, held=None, **settings):
    """The outputs of requests that come at the same time."""

    async def run():
        given = {"max_batch_size": 64, "timeout_secs": 0.05, "threads": 1, "max_queue_rows": 10**6}
        hold = held or (lambda model: contextlib.nullcontext())
        batcher = batching.Batcher(**{**given, **settings}, hold=hold)
        calls = [batcher.predict(counted, request) for request in made]
        found = await asyncio.gather(*calls, return_exceptions=True)
        batcher.close()
        assert not batcher._queues and not batcher._waiting_rows and not batcher._in_work
        return found

    return asyncio.run(run())


@pytest.mark.medium
def test_single_rows_are_joined_and_each_gets_its_own(model, rows, expected):
    inputs = rows["raw"]
    wanted = expected("raw", inputs)
    counted = Counted(model)
    found = joined(counted, [make(model, inputs, i, i + 1) for i in range(32)])
    # The first found nobody else in work.
    assert counted.calls == [1, 31]
    for index, outputs in enumerate(found):
        assert outputs.keys() == wanted.keys()
        for name, value in outputs.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value[0], wanted[name][index], rtol=1e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(value, wanted[name][index : index + 1])


@pytest.mark.medium
def test_lists_of_different_length_are_joined(model, rows, expected):
    inputs, made = rows["raw"], []
    for i in range(8):
        part = {name: value[i : i + 1] for name, value in inputs.items()}
        length = int(part["tags/length"][0])
        part["tags"] = part["tags"][:, :length]
        made.append(requests.make_request(model.find_signature("raw"), part, [], 9))
    assert len({request.inputs["tags"].shape for request in made if "tags" in request.inputs}) > 1
    counted = Counted(model)
    found = joined(counted, made)
    assert sum(counted.calls) == 8 and len(counted.calls) == 2
    wanted = expected("raw", {n: v[:8] for n, v in inputs.items()})["price/value"]
    prices = np.concatenate([outputs["price/value"] for outputs in found])
    np.testing.assert_allclose(prices, wanted, rtol=1e-6)


@pytest.mark.medium
def test_the_size_of_a_batch_is_bounded_and_large_requests_run_whole(model, rows, expected):
    inputs = rows["raw"]
    counted = Counted(model)
    sizes = [(0, 1), (1, 9), (9, 17), (0, 32), (17, 21)]
    found = joined(counted, [make(model, inputs, *size) for size in sizes], max_batch_size=16)
    assert sorted(counted.calls) == [1, 4, 16, 32]
    wanted = expected("raw", inputs)["price/value"]
    # A whole request has the very bits of a call in this process.
    np.testing.assert_array_equal(found[3]["price/value"], wanted)


@pytest.mark.medium
def test_only_equal_requests_are_joined(model, rows):
    inputs = rows["raw"]
    fewer = {name: value for name, value in inputs.items() if name != "word"}
    counted = Counted(model)
    made = [
        make(model, inputs, 0, 1),
        make(model, inputs, 0, 1, "raw/kind"),
        make(model, inputs, 0, 1, outputs=["price/value"]),
        make(model, fewer, 0, 1),
        make(model, inputs, 0, 1, outputs=["price/value"]),
    ]
    found = joined(counted, made)
    assert sorted(counted.calls) == [1, 1, 1, 2]
    assert list(found[2]) == ["price/value"] and sorted(found[1]) != sorted(found[0])


@pytest.mark.medium
def test_a_malformed_example_harms_only_itself(model, rows):
    examples = rows["serving_default"]["examples"]
    signature = model.find_signature("serving_default")
    made = [
        requests.make_request(signature, {"examples": np.array([each], object)}, [], 9)
        for each in (examples[0], examples[1], b"\xff", examples[2])
    ]
    found = joined(Counted(model), made)
    assert isinstance(found[2], Exception) and failures.explain_failure(found[2]).kind.status == 400
    assert all("price/value" in found[index] for index in (0, 1, 3))


@pytest.mark.medium
def test_off_means_one_by_one(model, rows):
    counted = Counted(model)
    joined(counted, [make(model, rows["raw"], i, i + 1) for i in range(6)], is_joining=False)
    assert counted.calls == [1] * 6


@pytest.mark.medium
def test_a_full_queue_refuses(model, rows):
    made = [make(model, rows["raw"], 0, 20) for _ in range(3)]
    found = joined(Counted(model), made, max_queue_rows=50)
    kinds = [type(one) for one in found]
    assert kinds == [dict, dict, failures.RequestError]
    assert found[2].kind == failures.BUSY and "40 rows are in progress, of at most 50" in str(
        found[2]
    )


@pytest.mark.medium
def test_a_client_that_goes_away_frees_its_place_and_holds_the_model(model, rows):
    counted, holds = Counted(model), []

    @contextlib.contextmanager
    def hold(held):
        holds.append(held)
        yield
        holds.remove(held)

    async def run():
        batcher = batching.Batcher(
            max_batch_size=64, timeout_secs=0.01, threads=1, max_queue_rows=100, hold=hold
        )
        counted.is_open.clear()
        tasks = [
            asyncio.create_task(batcher.predict(counted, make(model, rows["raw"], i, i + 1)))
            for i in range(5)
        ]
        await asyncio.sleep(0.05)
        assert holds == [counted]  # The first runs.
        for task in (tasks[0], tasks[2]):
            task.cancel()
        await asyncio.sleep(0.01)
        assert batcher._waiting_rows == 3 and holds == [counted]
        assert [len(queue.items) for queue in batcher._queues.values()] == [3]
        counted.is_open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        return found

    found = asyncio.run(run())
    assert [isinstance(one, dict) for one in found] == [False, True, False, True, True]
    assert counted.calls == [1, 3] and not holds


@pytest.mark.medium
@pytest.mark.parametrize("timeout_secs", [0.0, 60.0])
def test_requests_whose_time_is_over_do_not_pile_up_behind_a_call(model, rows, timeout_secs):
    counted = Counted(model)
    counted.is_open.clear()
    made = [make(model, rows["raw"], 0, size) for size in (0, 1, 2)]
    made += [make(model, rows["raw"], 0, 1, outputs=["price/value"])]

    async def run():
        batcher = batching.Batcher(
            max_batch_size=2,
            timeout_secs=timeout_secs,
            threads=1,
            max_queue_rows=100,
            hold=lambda model: contextlib.nullcontext(),
        )
        first = asyncio.create_task(batcher.predict(counted, made[1]))
        await asyncio.sleep(0)
        for _ in range(3):
            tasks = [asyncio.create_task(batcher.predict(counted, request)) for request in made]
            await asyncio.sleep(0)
            assert batcher._waiting_rows == 6 and len(batcher._queues) == 3
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not batcher._queues and not batcher._ready and batcher._waiting_rows == 1
        counted.is_open.set()
        await first
        await batcher.predict(counted, made[1])
        batcher.close()

    asyncio.run(run())
    assert counted.calls == [1, 1]


@pytest.mark.medium
def test_a_failure_of_ours_reaches_every_request(rows, model):
    class Broken:
        def run(self, *given):
            raise KeyError("ours")

    found = joined(Broken(), [make(model, rows["raw"], i, i + 1) for i in range(3)])
    assert [type(one) for one in found] == [KeyError] * 3
