import pytest
import tensorflow as tf

from mtl import checks
from mtl.variables import patterns

tf1 = tf.compat.v1

NAMES = ("network/hidden_0/kernel", "network/hidden_01/kernel", "head/income/bias", "features/age")


@pytest.fixture(name="variables")
def _variables():
    with tf.Graph().as_default():
        yield [tf1.get_variable(name, [1]) for name in NAMES]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("network", NAMES[:2]),
        ("^network/.*/kernel$", NAMES[:2]),
        ("hidden_0", NAMES[:2]),
        ("/hidden_0/", NAMES[:1]),
        ("^head/income/", NAMES[2:3]),
        ("(bias|age)$", NAMES[2:]),
        ("", NAMES),
    ],
)
def test_select(variables, pattern, expected):
    selected = patterns.select_variables("Part.setting", pattern, variables)
    assert [patterns.variable_name(variable) for variable in selected] == list(expected)


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("netwrok", "Nearest: network."),
        ("^hidden_2/", "Nearest: hidden_0, hidden_01."),
        ("^head/incoem/bias$", "Nearest: head/income/bias, head/income"),
        ("^network$", "Nearest: network, network/hidden_0."),
        ("zzz", "Variables: network/hidden_0/kernel, network/hidden_01/kernel, head/income/bias"),
    ],
)
def test_no_match_names_the_nearest(variables, pattern, nearest):
    with pytest.raises(checks.UserError) as error:
        patterns.select_variables("Part.setting", pattern, variables)
    assert str(error.value).startswith(f"Part.setting must match a variable, got {pattern!r}. ")
    assert nearest in str(error.value)
    assert "\n" not in str(error.value)


def test_of_many_variables_five_are_named():
    with pytest.raises(checks.UserError, match="Variables: v0, v1, v2, v3, v4 and 2 more[.]"):
        patterns.select_variables("Part.setting", "zzz", [f"v{n}" for n in range(7)])
    with pytest.raises(checks.UserError, match="Variables: v0, v1, v2, v3, v4[.]"):
        patterns.select_variables("Part.setting", "zzz", [f"v{n}" for n in range(5)])


def test_check():
    patterns.check_patterns("Part.setting", ["a.*b", "^c$"])
    with pytest.raises(checks.UserError, match=r"Part.setting must hold regular expressions"):
        patterns.check_patterns("Part.setting", ["a", "*b"])
    with pytest.raises(checks.UserError, match="Part.setting must be a list of patterns, got 'a'"):
        patterns.check_patterns("Part.setting", "a")
