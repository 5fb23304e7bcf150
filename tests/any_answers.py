"""What a server out of order may answer with: nearly what is expected, nonsense, and all between."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["DEEP", "any_json", "bodies"]

DEEP = b"[" * 20_000 + b"]" * 20_000
"""Nested deeper than any reader follows."""

_texts = st.text(max_size=8) | st.sampled_from(
    ["", "true", "1", "-1", "1e999", "\ud800", "\0", "a\r\nb", "9" * 5000]
)
_numbers = st.integers() | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 2**70, 1e300])
_values = st.none() | st.booleans() | _numbers | _texts

any_json = st.recursive(
    _values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


def bodies(*names: str) -> st.SearchStrategy[bytes]:
    """Bodies of answers: mostly JSON objects with some of these members, whose values are anything.

    Args:
        names: the members that whoever reads the answer looks for.
    """
    members = st.fixed_dictionaries({}, optional=dict.fromkeys(names, any_json))
    whole = (members | any_json).map(_encoded)
    cut = st.builds(lambda body, end: body[:end], whole, st.integers(0, 60))
    deep = st.sampled_from([DEEP, *(b'{"%b":%b}' % (name.encode(), DEEP) for name in names)])
    return whole | whole | cut | st.binary(max_size=40) | deep


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
