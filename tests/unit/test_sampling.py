"""SamplingParams: the defaults of the interface and every limit of it."""

import math

import pytest

from xinfer.errors import RequestError
from xinfer.sampling import SamplingParams


def test_defaults_are_greedy_and_neutral() -> None:
    params = SamplingParams()
    assert params.greedy and not params.penalized
    assert (params.top_k, params.top_p, params.min_p, params.max_tokens, params.seed) == (
        0,
        1.0,
        0.0,
        256,
        None,
    )
    assert params.stops == () and params.logit_bias == {} and params.n == 1


def test_forms() -> None:
    assert SamplingParams(stop="END").stops == ("END",)
    assert SamplingParams(stop=["a", "b"]).stops == ("a", "b")
    assert SamplingParams(max_tokens=None).max_tokens is None
    assert SamplingParams(logit_bias={1: -100}).penalized
    assert SamplingParams(repetition_penalty=1.1).penalized and SamplingParams(presence_penalty=-2).penalized
    SamplingParams(temperature=2, top_k=1, top_p=0.1, min_p=1, seed=-5, logit_bias={i: 1 for i in range(300)})


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("temperature", -0.1, "temperature must be at least 0, not -0.1"),
        ("temperature", math.nan, "temperature must be"),
        ("temperature", math.inf, "temperature must be"),
        ("temperature", 1e-30, "too close to 0: use 0 for greedy"),
        ("temperature", "hot", "temperature must be a number, not 'hot'"),
        ("temperature", True, "temperature must be a number"),
        ("top_p", 0, "top_p must be above 0 and at most 1, not 0"),
        ("top_p", 1.01, "top_p must be above 0 and at most 1"),
        ("top_k", -1, "top_k must be at least 0, not -1"),
        ("top_k", 1.5, "top_k must be a whole number"),
        ("min_p", -0.1, "min_p must be at least 0 and at most 1"),
        ("repetition_penalty", 0, "repetition_penalty must be above 0"),
        ("frequency_penalty", 2.1, "frequency_penalty must be at least -2 and at most 2"),
        ("presence_penalty", -2.1, "presence_penalty must be at least -2 and at most 2"),
        ("max_tokens", 0, "max_tokens must be at least 1"),
        ("max_tokens", 2.0, "max_tokens must be a whole number"),
        ("min_tokens", -1, "min_tokens must be at least 0"),
        ("min_tokens", 257, "min_tokens 257 is above max_tokens 256"),
        ("seed", 1 << 64, "seed must be at most"),
        ("seed", "1", "seed must be a whole number"),
        ("stop", "", "non-empty"),
        ("stop", ["a", ""], "non-empty"),
        ("stop", [1], "non-empty strings"),
        ("stop", 5, "stop must be a string or a list"),
        ("stop", [str(i) for i in range(17)], "stop has 17 strings, at most 16"),
        ("stop_token_ids", [-1], "a token id must be at least 0"),
        ("stop_token_ids", 7, "stop_token_ids must be a list"),
        ("ignore_eos", 1, "ignore_eos must be true or false"),
        ("logit_bias", {"1": 1}, "a token id must be a whole number, not '1'"),
        ("logit_bias", {1: 101}, "logit_bias of token 1 must be at least -100 and at most 100"),
        ("logit_bias", {i: 0 for i in range(301)}, "logit_bias has 301 entries, at most 300"),
        ("logit_bias", [1], "logit_bias must map"),
        ("n", 2, "n must be 1, not 2"),
        ("n", 0, "n must be at least 1"),
    ],
)
def test_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**{field: value})
    assert message in str(error.value) and "\n" not in str(error.value)
