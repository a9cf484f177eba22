"""Saved values end up where they belong: by scope, by name, by row, from every kind of source."""

import contextlib
import dataclasses
import itertools
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, features, heads, networks, transfer, verbs
from mtl.checkpoints import run_directory
from mtl.features import embeddings
from mtl.model import graph_options
from mtl.optimization import optimizers
from mtl.transfer import source as source_lib
from tests import pairs, tiny

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1
KIND = "head/kind/logits/kernel"
WORDS = "features/categorical_word/embedding"


@pytest.fixture(scope="module", name="source")
def _source(tmp_path_factory):
    """A finished run: words blue, green, red by frequency; kinds 0, 1, 2."""
    directory = tmp_path_factory.mktemp("source")
    verbs.train(tiny.make(train_steps=20, checkpoint_steps=10), str(directory))
    return directory


def _words(*names):
    """Splits in which the words of these names occur, the first most often."""
    random = np.random.default_rng(0)
    splits = {split: dict(rows) for split, rows in tiny.SPLITS.items()}
    share = np.arange(len(names), 0, -1.0)
    for rows in splits.values():
        drawn = random.choice(len(names), len(rows["word"]), p=share / share.sum())
        drawn[: 2 * len(names)] = np.tile(np.arange(len(names)), 2)
        rows["word"] = np.array([names[i].encode() for i in drawn], object)
    return splits


def _with(made, heads_=None, **settings):
    """The experiment, warm-started; with other heads where given."""
    if heads_:
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, heads=heads_))
    return dataclasses.replace(made, warm_start=transfer.WarmStart(**settings))


@contextlib.contextmanager
def _building(made, directory):
    """Holds the graph of training, and yields the names of rows."""
    dataset = made.data.dataset("train", training=False, seed=1)
    statistics = str(directory / "statistics")
    features.fit_columns(made.model.columns, dataset, statistics)
    if made.warm_start:
        made.warm_start.take_statistics(statistics, made.model.columns, [])
    fitted = features.load_statistics(statistics)
    loop = {"steps_per_call": 7, "last_step": 9, "due_every": ()}
    with tf.Graph().as_default():
        tf1.set_random_seed(9)
        tf1.train.get_or_create_global_step()
        iterator = tf1.data.make_initializable_iterator(
            made.data.dataset("train", training=True, seed=1)
        )
        mode = compat.estimator.ModeKeys.TRAIN
        made.model.model_fn(
            iterator, None, mode, options=graph_options.GraphOptions(statistics=fitted, loop=loop)
        )
        yield made.model.row_names(fitted)


def _warm(warm_start, named, directory):
    """The variables before the first step, of the graph that is held."""
    warm_start.prepare(warm_start.plan(tf1.global_variables(), named), str(directory))
    warmed = warm_start.warm_model_fn(lambda *_: None, named, str(directory))
    warmed(None, None, compat.estimator.ModeKeys.TRAIN)
    return _initialize()


def _initialize():
    with tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        return session.run({v.op.name: v for v in tf1.global_variables()})


def _start(made, directory):
    """Return the variables before the first step, with the warm start and without it."""
    with _building(made, directory) as named:
        plain = _initialize()
        return _warm(made.warm_start, named, directory), plain


def _outcomes(directory):
    """{variable: (outcome, why)} of the report."""
    lines = (pathlib.Path(directory) / "warm_start.txt").read_text().splitlines()[2:]
    rows = [re.split(" {2,}", line) for line in lines]
    return {row[1]: (row[0], row[3] if len(row) > 3 else "") for row in rows}


def _order(directory):
    """The words of a run, as its rows have them."""
    return (directory / "statistics" / "vocabulary_categorical_word.txt").read_text().split()


def test_scopes_choose_and_the_report_tells_of_every_variable(source, tmp_path):
    made = tiny.make(optimizer=optimizers.Momentum(learning_rate=0.1))
    settings = {"include": ["^features/", "^network/"], "exclude": ["^network/tower_size/"]}
    values, plain = _start(_with(made, source=str(source), **settings), tmp_path)
    saved = tiny.variables(source)
    outcomes = _outcomes(tmp_path)
    for name, value in values.items():
        chosen = name.startswith(("features/", "network/")) and "tower_size" not in name
        chosen = chosen and not name.endswith("Momentum")
        np.testing.assert_array_equal(value, (saved if chosen else plain)[name], err_msg=name)
        assert outcomes[name][0] == ("warmed" if chosen else "skipped")
    assert values["global_step"] == 0 and saved["global_step"] == 20
    assert outcomes["network/tower_size/hidden_0/kernel"][1] == "excluded by '^network/tower_size/'"
    assert outcomes[KIND][1] == "not included"
    assert outcomes[f"{KIND}/Momentum"][1] == "the optimizer's state"
    assert outcomes["network/trunk/hidden_0_norm/moving_mean"][0] == "warmed"
    assert outcomes["beta1_power"][0] == "not used"


def test_every_kind_of_source(source, tmp_path):
    version = max((source / "export" / "latest").iterdir())
    paths = {
        "checkpoint": tf.train.latest_checkpoint(str(source)),
        "best": source / "best",
        "export": source / "export" / "latest",
        "version": version,
    }
    words = ("red", "blue", "green")
    chosen = (KIND, "network/trunk/hidden_0/kernel", "network/trunk/hidden_0_norm/moving_mean")
    # The vocabulary is found with each of them.
    order = _order(source)
    with _building(tiny.make(splits=_words(*words)), tmp_path) as named:
        for kind, path in paths.items():
            values = _warm(transfer.WarmStart(source=str(path)), named, tmp_path / kind)
            saved = tiny.variables(source / "best" if kind == "best" else source)
            for name in chosen:
                np.testing.assert_array_equal(values[name], saved[name], err_msg=kind)
            rows = saved[WORDS][[order.index(word) for word in words]]
            np.testing.assert_array_equal(values[WORDS][:3], rows, err_msg=kind)


def test_rows_follow_their_tokens(source, tmp_path):
    words = ("violet", "red", "green", "grey")
    old, order = tiny.variables(source)[WORDS], _order(source)
    with _building(tiny.make(splits=_words(*words)), tmp_path) as named:
        plain = _initialize()[WORDS]
        new = {"own": plain, "mean": [old.mean(0)] * 4, "unknown": [old[-1]] * 4}
        new["zeros"] = np.zeros([4, 2])
        assert plain.shape == (5, 2) and old.shape == (4, 2)
        for new_rows, expected in new.items():
            start = transfer.WarmStart(source=str(source), new_rows=new_rows)
            rows = _warm(start, named, tmp_path / new_rows)[WORDS]
            for row, word in enumerate(words):
                own = old[order.index(word)] if word in order else expected[row]
                np.testing.assert_allclose(rows[row], own, rtol=1e-6, err_msg=new_rows)
            np.testing.assert_array_equal(rows[-1], old[-1])
            assert _outcomes(tmp_path / new_rows)[WORDS] == ("warmed", "3 of 5 rows by name")


def test_a_vocabulary_that_shrank_and_more_places_for_the_unknown(source, tmp_path):
    column = features.Categorical(names=["word"], dimension=2, vocabulary=["red"], num_unknown=2)
    made = tiny.make(columns=[features.Numeric(names=["x"]), column])
    values, plain = _start(_with(made, source=str(source)), tmp_path)
    red = tiny.variables(source)[WORDS][_order(source).index("red")]
    np.testing.assert_array_equal(values[WORDS][0], red)
    np.testing.assert_array_equal(values[WORDS][1:], plain[WORDS][1:])


def test_a_table_of_16_bits_starts_from_one_of_32_and_the_other_way_round(source, tmp_path):
    words = ("red", "blue", "violet")

    def make(storage, names):
        column = features.Categorical(names=["word"], dimension=2, storage=storage)
        return tiny.make(splits=_words(*names), columns=[column], train_steps=1, checkpoint_steps=1)

    half = _with(make("bfloat16", words), source=str(source), include=["^features/"])
    values, _ = _start(half, tmp_path / "half")
    old, order = tiny.variables(source)[WORDS], _order(source)
    assert values[WORDS].dtype == tf.bfloat16.as_numpy_dtype
    for row, word in enumerate(words[:2]):
        expected = old[order.index(word)].astype(values[WORDS].dtype)
        np.testing.assert_array_equal(values[WORDS][row], expected)
    trained = tmp_path / "trained"
    saved = tiny.train(make("bfloat16", words), trained)[WORDS].astype(np.float32)
    back = _with(make("float32", words[::-1]), source=str(trained), include=["^features/"])
    values, _ = _start(back, tmp_path / "back")
    np.testing.assert_array_equal(values[WORDS][:3], saved[:3][::-1])


def _small_tables(splits=None, dimension=3, **settings):
    """Blocks of 1 word and of all others, and a hash whose rows stand for several words."""
    mixed = embeddings.MixedDimensions(ends=[1], dimensions=[2, 1])
    pairs = {"names": ["word"], "dimension": dimension, "prefix": "pair", **settings}
    small = embeddings.QuotientRemainder(num_remainders=2)
    kind = features.Hashed if "num_buckets" in settings else features.Categorical
    columns = [
        features.Categorical(names=["word"], dimension=2, embedding=mixed),
        kind(embedding=small, **pairs),
    ]
    return tiny.make(splits=splits, columns=columns, train_steps=2, checkpoint_steps=2)


def test_rows_of_a_block_follow_their_tokens_and_projections_stay(tmp_path):
    saved = tmp_path / "source"
    tiny.train(_small_tables(_words("red", "blue", "green"), num_buckets=20), saved)
    made = _small_tables(_words("red", "green", "grey", "blue"), num_buckets=20)
    values, plain = _start(_with(made, source=str(saved)), tmp_path / "here")
    old, scope = tiny.variables(saved), "features/categorical_word"
    rows = {name: values[f"{scope}/block_{name}/embedding"] for name in (0, 1)}
    before = {name: old[f"{scope}/block_{name}/embedding"] for name in (0, 1)}
    np.testing.assert_array_equal(rows[0], before[0])
    # Blue, green and the unknown word keep their rows; grey is new.
    np.testing.assert_array_equal(rows[1][[2, 0, 3]], before[1])
    np.testing.assert_array_equal(rows[1][1], plain[f"{scope}/block_1/embedding"][1])
    for name in (f"{scope}/projection_1", "features/pair_word/quotient"):
        np.testing.assert_array_equal(values[name], old[name])
    outcomes = _outcomes(tmp_path / "here")
    assert outcomes[f"{scope}/block_1/embedding"] == ("warmed", "3 of 4 rows by name")
    # As many quotients and remainders, and other hashes.
    other = _with(_small_tables(num_buckets=19), source=str(saved))
    with pytest.raises(checks.UserError, match=r"pair_word/quotient' must have the same vocab"):
        _start(other, tmp_path / "other")


def test_a_table_of_many_fields_takes_more_of_them_and_none_of_another_name(tmp_path):
    def make(prefix, *others):
        own = [features.Unified(names=["word"], num_buckets=9, dimension=2, prefix=prefix)]
        return tiny.make(columns=[*own, *others], train_steps=2, checkpoint_steps=2)

    saved = tmp_path / "source"
    for folder in ("more", "other"):
        (tmp_path / folder).mkdir()
    tiny.train(make("unified"), saved)
    name = "features/unified/embedding"
    more = features.Unified(names=["word"], num_buckets=9, dimension=2, prefix="again")
    made = _with(make("unified", more), source=str(saved), include=["^features/"])
    values, _ = _start(made, tmp_path / "more")
    np.testing.assert_array_equal(values[name], tiny.variables(saved)[name])
    with pytest.raises(checks.UserError, match="unified/embedding' must have the same vocabulary"):
        _start(_with(make("other"), source=str(saved)), tmp_path / "other")


def test_rows_that_stand_for_several_tokens_need_the_same_vocabulary(tmp_path):
    saved = tmp_path / "source"
    tiny.train(_small_tables(_words("red", "blue", "green")), saved)
    same = _with(_small_tables(_words("red", "blue", "green")), source=str(saved))
    values, _ = _start(same, tmp_path / "same")
    name = "features/pair_word/remainder"
    np.testing.assert_array_equal(values[name], tiny.variables(saved)[name])
    other = _with(_small_tables(_words("red", "green", "blue")), source=str(saved))
    with pytest.raises(checks.UserError, match="Each row stands for several values: exclude"):
        _start(other, tmp_path / "other")


def test_columns_of_the_last_layer_follow_their_classes(source, tmp_path):
    changed = [
        heads.Binary(name="sign"),
        heads.MultiClass(name="kind", classes=["2", "5", "0", "1", "7"]),
        heads.Regression(name="size"),
    ]
    made = _with(tiny.make(), changed, source=str(source), slots=True)
    values, plain = _start(made, tmp_path)
    saved = tiny.variables(source)
    bias = KIND.replace("kernel", "bias")
    for name in (KIND, bias, f"{KIND}/Adam", f"{bias}/Adam_1"):
        np.testing.assert_array_equal(values[name][..., [0, 2, 3]], saved[name][..., [2, 0, 1]])
        np.testing.assert_array_equal(values[name][..., [1, 4]], plain[name][..., [1, 4]])
        assert _outcomes(tmp_path)[name] == ("warmed", "3 of 5 rows by name")
    assert values["beta1_power"] == saved["beta1_power"]


def test_classes_in_another_order_are_refused_if_weights_describe_them_together(tmp_path):
    """With the weights as they are, the head would predict the reverse."""
    made = tiny.make(train_steps=1)
    first, reverse = (
        [heads.Ordinal(name="kind", classes=list(classes))] for classes in ("012", "210")
    )
    model = dataclasses.replace(made.model, heads=first)
    tiny.train(dataclasses.replace(made, model=model), tmp_path / "source")
    message = r"variable 'head/kind/\w+.*' must have the order of classes in .*, 0, 1, 2, got \['2'"
    with pytest.raises(checks.UserError, match=message):
        _start(_with(made, reverse, source=str(tmp_path / "source")), tmp_path / "run")


def test_rows_without_names_in_the_source_are_told(source, tmp_path):
    values = dict(transfer.read_checkpoint(str(source)))  # As from another program.
    transfer.write_checkpoint(values, str(tmp_path / "edited" / "model.ckpt"))
    made = _with(tiny.make(), source=str(tmp_path / "edited"))
    _start(made, tmp_path)
    why = "rows keep their places, because the source does not name them"
    assert _outcomes(tmp_path)[WORDS] == _outcomes(tmp_path)[KIND] == ("warmed", why)
    line = (tmp_path / "warm_start.txt").read_text().splitlines()[0]
    assert "; rows by position, as the source lacks their names: " in line and WORDS in line


def test_classes_of_other_names_start_anew(source, tmp_path):
    named = [heads.MultiClass(name="kind", classes=["a", "b", "c"])]
    made = _with(tiny.make(), named, source=str(source))
    values, plain = _start(made, tmp_path)
    np.testing.assert_array_equal(values[KIND], plain[KIND])
    assert _outcomes(tmp_path)[KIND] == ("initialised", "0 of 3 rows by name")
    made = _with(tiny.make(), named, source=str(source), include=["^head/kind/"])
    message = "WarmStart.include must match a variable of .* is not warmed: 0 of 3 rows by name."
    with pytest.raises(checks.UserError, match=message):
        _start(made, tmp_path)
    made = _with(tiny.make(), named, source=str(source), new_rows="zeros")
    values, _ = _start(made, tmp_path)
    assert not values[KIND].any()


def test_names_of_rows_can_be_given(source, tmp_path):
    named = tmp_path / "old.txt"
    named.write_text("blue\nred\nteal\n")
    settings = {"row_names": {"^features/categorical_word/": str(named)}, "include": ["^features/"]}
    made = _with(tiny.make(splits=_words("teal", "blue")), source=str(source), **settings)
    values, _ = _start(made, tmp_path)
    np.testing.assert_array_equal(values[WORDS], tiny.variables(source)[WORDS][[2, 0, 3]])


def test_given_names_must_name_each_saved_row_once(source, tmp_path):
    table, classes = "^features/categorical_word/", "^head/kind/"
    cases = (
        (table, "abcdefgh", f"at most 4 names, for the rows of '{WORDS}' in .*, got 8"),
        (table, "aba", r"each name once, got \['a'\]"),
        (classes, "abcd", f"3 names, for the rows of '{KIND}' in .*, got 4"),
        (classes, "ab", f"3 names, for the rows of '{KIND}' in .*, got 2"),
    )
    file = tmp_path / "old.txt"
    with _building(tiny.make(), tmp_path) as named:
        for pattern, names, message in cases:
            file.write_text("\n".join(names) + "\n")
            start = transfer.WarmStart(source=str(source), row_names={pattern: str(file)})
            where = re.escape(f"WarmStart.row_names[{pattern!r}] must hold ")
            with pytest.raises(checks.UserError, match=where + message):
                start.plan(tf1.global_variables(), named)


ODD = [f"a{odd}b" for odd in "\u2028\u2029\x85\v\f\x1c\x1d\x1e"]


def test_names_that_python_would_cut_into_lines(tmp_path):
    """Weights and slots of tokens and classes, in another order and with a new one.

    The names of tokens are fitted, in a file, or listed.
    """
    words = {"source": [*ODD, "plain"], "run": ["new", "plain", *ODD[::-1]]}
    made = {}
    for where, names in words.items():
        (tmp_path / where).mkdir()
        path = tmp_path / where / "words.txt"
        path.write_text("\n".join(names) + "\n", encoding="utf-8", newline="\n")
        columns = [
            features.Categorical(names=["word"], dimension=2, vocabulary=own, prefix=kind)
            for kind, own in (("fitted", None), ("file", str(path)), ("list", names))
        ]
        classes = [f"{name}!" for name in names]
        heads_ = [heads.Binary(name="sign"), heads.MultiClass(name="kind", classes=classes)]
        experiment = tiny.make(splits=_words(*names), columns=columns, train_steps=3)
        made[where] = dataclasses.replace(
            experiment, model=dataclasses.replace(experiment.model, heads=heads_)
        )
    tiny.train(made["source"], tmp_path / "source")
    warmed = _with(made["run"], source=str(tmp_path / "source"), slots=True)
    values, plain = _start(warmed, tmp_path / "run")
    saved = tiny.variables(tmp_path / "source")

    fitted = {}
    for where in words:
        path = tmp_path / where / "statistics" / "vocabulary_fitted_word.txt"
        fitted[where] = path.read_bytes().decode().split("\n")[:-1]
        assert sorted(fitted[where]) == sorted(words[where])
    for kind, slot in itertools.product(("fitted", "file", "list"), ("", "/Adam", "/Adam_1")):
        table, orders = (
            f"features/{kind}_word/embedding{slot}",
            fitted if kind == "fitted" else words,
        )
        for row, word in enumerate(orders["run"]):
            known = word in orders["source"]
            old = saved[table][orders["source"].index(word)] if known else plain[table][row]
            np.testing.assert_array_equal(values[table][row], old, err_msg=f"{kind}: {word!r}")
    for slot in ("", "/Adam", "/Adam_1"):
        for place, name in enumerate(words["run"]):
            known = name in words["source"]
            there = saved[KIND + slot], words["source"].index(name) if known else None
            old = there[0][:, there[1]] if known else plain[KIND + slot][:, place]
            np.testing.assert_array_equal(values[KIND + slot][:, place], old, err_msg=repr(name))


def test_a_new_task_starts_from_the_tower_of_another(source, tmp_path):
    added = [heads.Binary(name="sign"), heads.Regression(name="length", label="size")]
    made = _with(
        tiny.make(),
        added,
        source=str(source),
        rename={"^network/tower_length/": "network/tower_size/"},
    )
    values, plain = _start(made, tmp_path)
    saved = tiny.variables(source)
    for task, old in (("length", "size"), ("sign", "sign")):
        name = "network/tower_{}/hidden_0/kernel"
        np.testing.assert_array_equal(values[name.format(task)], saved[name.format(old)])
    outcomes = _outcomes(tmp_path)
    expected = ("renamed", "from network/tower_size/hidden_0/kernel")
    assert outcomes["network/tower_length/hidden_0/kernel"] == expected
    new = "head/length/logits/kernel"
    assert outcomes[new] == ("initialised", "the source lacks it")
    np.testing.assert_array_equal(values[new], plain[new])


def test_masks_and_slots_follow_their_variable(source, tmp_path):
    """Patterns that end in $ match the variable, but not the names of its slots."""
    first, second = (f"head/{task}/logits/kernel" for task in ("sign", "size"))
    settings = {"rename": {f"^{first}$": second}, "exclude": [f"^{KIND}$"], "slots": True}
    made = _with(tiny.make(), source=str(source), **settings)
    values, plain = _start(made, tmp_path)
    saved = tiny.variables(source)
    for slot in ("", "/Adam", "/Adam_1"):
        np.testing.assert_array_equal(values[first + slot], saved[second + slot])
        np.testing.assert_array_equal(values[KIND + slot], plain[KIND + slot])
    assert np.abs(saved[f"{KIND}/Adam"]).max() > 0


def test_statistics_of_the_source(source, tmp_path):
    splits = _words("violet", "red", "green", "grey")
    splits["train"]["x"] = splits["train"]["x"] * 9 + 5
    made = _with(tiny.make(splits=splits), source=str(source), statistics=True)
    values, _ = _start(made, tmp_path)
    np.testing.assert_array_equal(values[WORDS], tiny.variables(source)[WORDS])
    kept = [
        features.load_statistics(str(directory / "statistics")).for_column("numeric_x")["mean"]
        for directory in (source, tmp_path)
    ]
    assert kept[0] == kept[1]


def test_truth_values_and_texts_start_as_they_are(tmp_path):
    saved = {"network/on": np.array([True, False]), "network/words": np.array([b"a", b"b"], object)}
    transfer.write_checkpoint(saved, str(tmp_path / "model.ckpt"))
    with tf.Graph().as_default():
        for name, value in saved.items():
            tf1.get_variable(name, initializer=tf.zeros_like(value), trainable=False)
        values = _warm(transfer.WarmStart(source=str(tmp_path)), {}, tmp_path)
    for name, value in saved.items():
        np.testing.assert_array_equal(values[name], value)
        assert values[name].dtype == value.dtype


def test_statistics_need_a_run(source, tmp_path):
    path = shutil.copytree(source, tmp_path / "copy")
    shutil.rmtree(path / "statistics")
    made = _with(tiny.make(), source=str(path), statistics=True)
    message = (
        "WarmStart.source must be a model_dir with statistics, because WarmStart.statistics is"
    )
    with pytest.raises(checks.UserError, match=message):
        _start(made, tmp_path)
    # Such a column has no statistics.
    made.warm_start.take_statistics(str(tmp_path), [features.Image(names=["x"])], [])


@pytest.mark.parametrize("name", ["clipped examples", "images moved at random"])
def test_a_step_that_counts_its_rows_can_start_from_a_run(name, tmp_path):
    made = pairs.make([pairs.BY_NAME[name]], train_steps=1)
    tiny.train(made, tmp_path / "source")
    again = _with(made, source=str(tmp_path / "source"))
    assert tiny.train(again, tmp_path / "run")["global_step"] == 1


def test_a_run_starts_once_and_then_goes_on_by_itself(source, tmp_path):
    copy, runs = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(source, copy)
    made = _with(tiny.make(train_steps=1, checkpoint_steps=1), source=str(copy))
    tiny.train(made, runs)
    reader = tf.train.load_checkpoint(str(runs / "model.ckpt-0"))
    for name, value in tiny.variables(source).items():
        if name.startswith(("network/", "head/")) and "Adam" not in name:
            np.testing.assert_array_equal(reader.get_tensor(name), value)
    # Without the source, and other weights by now.
    shutil.rmtree(copy)
    longer = dataclasses.replace(made, run=dataclasses.replace(made.run, train_steps=2))
    assert tiny.train(longer, runs)["global_step"] == 2


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A graph of training with a new task, and the names of its rows."""
    heads_ = [heads.Binary(name="sign"), heads.Binary(name="new", label="sign")]
    made = tiny.make()
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, heads=heads_))
    with _building(made, tmp_path_factory.mktemp("built")) as named:
        return tf1.get_default_graph(), named


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"include": ["^netwrok/"]},
            r"WarmStart.include must match a variable, got '\^netwrok/'. N",
        ),
        ({"exclude": ["^hed/"]}, r"WarmStart.exclude must match a variable, got '\^hed/'. Nearest"),
        (
            {"rename": {"trnk": "a"}},
            "WarmStart.rename must match a variable, got 'trnk'. Nearest: t",
        ),
        (
            {"rename": {"^network/trunk/": "network/trunkk/"}},
            r"rename of 'network/trunk/.*' must lead to a variable of .*model.ckpt-20, got "
            r"'network/trunkk/hidden_0.*'. Did you mean 'network/trunk/hidden_0",
        ),
        (
            {"include": ["^features/", "^head/new/"]},
            r"include must match a variable of .*model.ckpt-20, got '\^head/new/'. The source la",
        ),
    ],
)
def test_a_pattern_without_a_match(source, built, settings, message):
    graph, named = built
    with graph.as_default(), pytest.raises(checks.UserError, match=message):
        transfer.WarmStart(source=str(source), **settings).plan(tf1.global_variables(), named)


def test_another_shape(source, tmp_path):
    wider = networks.SharedBottom(trunk=networks.MLP(layers=[9], batch_norm=True))
    made = _with(tiny.make(network=wider), source=str(source))
    message = (
        r"variable 'network/trunk/hidden_0/kernel' must have its shape \[5, 9\] in .*-20 too, got "
        r"\[5, 8\]. Set WarmStart"
    )
    with pytest.raises(checks.UserError, match=message):
        _start(made, tmp_path)


def test_no_source(source, tmp_path, built):
    graph, named = built
    missing = str(source / "model.ckpt-21")
    message = (
        r"source must be a checkpoint, a model_dir or a SavedModel, got .*21'. Did you mean 'm"
    )
    with graph.as_default():
        with pytest.raises(checks.UserError, match=message):
            transfer.WarmStart(source=missing).plan(tf1.global_variables(), named)
        with pytest.raises(checks.UserError, match="holds no checkpoint"):
            transfer.WarmStart(source=str(tmp_path)).plan(tf1.global_variables(), named)


def test_a_damaged_source(source, tmp_path, built):
    graph, named = built
    copy = pathlib.Path(shutil.copytree(source, tmp_path / "copy"))
    path = copy / "model.ckpt-20.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    start = transfer.WarmStart(source=str(copy), slots=True)
    says = "model.ckpt-20 is damaged: '.*' cannot be read"
    with graph.as_default(), pytest.raises(checks.UserError, match=says):
        _warm(start, named, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": None}, "WarmStart.source must be a text, got None"),
        ({"include": "a"}, "WarmStart.include must be a list of patterns"),
        ({"include": []}, "WarmStart.include must hold a pattern"),
        ({"new_rows": "average"}, "WarmStart.new_rows must be one of own, mean, unknown, zeros"),
        ({"row_names": {"a": "/nowhere"}}, r"row_names\['a'\] must be a list of names or an exist"),
        ({"rename": ["a"]}, "WarmStart.rename must map patterns to replacements"),
        ({"rename": {"^a/": r"b/\1"}}, r"rename\['\^a/'\] must be a replace.* invalid group ref"),
        (
            {"rename": {"^a/": r"b/\g<x>"}},
            r"must be a replacement as in re.sub, .* mistake: unknown group",
        ),
        (
            {"rename": {"^a/": r"b\d"}},
            r"must be a replacement as in re.sub, .* mistake: bad escape",
        ),
        ({"slots": 1}, "WarmStart.slots must be True or False"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        transfer.WarmStart(**{"source": "a", **settings})


def test_it_is_a_part_of_an_experiment():
    with pytest.raises(checks.UserError, match=r"warm_start must be built, such as @transfer.Warm"):
        dataclasses.replace(tiny.make(), warm_start=transfer.WarmStart)


@pytest.mark.parametrize("source", ["run", "run/", "run/best", "run/model.ckpt-60", "else/../run"])
def test_a_run_cannot_start_from_itself(tmp_path, source):
    started = transfer.WarmStart(source=str(tmp_path / source))
    with pytest.raises(checks.UserError, match="WarmStart.source must lie outside of --model_dir"):
        started.check_source(str(tmp_path / "run"))


@pytest.mark.parametrize("source", ["other", "run/earlier-1/model.ckpt-60", "run/export/latest"])
def test_a_run_may_start_from_what_lies_in_its_folder_and_is_not_its_own(tmp_path, source):
    (tmp_path / "run" / "export" / "latest").mkdir(parents=True)
    transfer.WarmStart(source=str(tmp_path / source)).check_source(str(tmp_path / "run"))


def test_checkpoints_that_no_list_names_are_told_of(tmp_path):
    for step in (0, 60):
        (tmp_path / f"model.ckpt-{step}.index").write_text("")
    told = "The file 'checkpoint', .* is gone: copy it back, or name one, such as .*model.ckpt-60'"
    with pytest.raises(checks.UserError, match=told):
        source_lib.open_source("WarmStart.source", str(tmp_path))
    with pytest.raises(checks.UserError, match=f"--checkpoint must be .*{told}"):
        run_directory.checkpoint_path(str(tmp_path), "latest")
