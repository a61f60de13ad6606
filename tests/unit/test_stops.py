"""Stop strings against a search in the whole text, and stop ids against what families are known to use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinfer.errors import RequestError
from xinfer.text.stops import stop_ids, token_ids
from xinfer.text.stream import StopMatcher

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """(start, end) of the stop string that is complete first, the longest of several."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


def held_back(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return max(
        (n for n in range(len(text) + 1) if any(s[:n] == text[len(text) - n :] for s in stops)), default=0
    )


@given(st.lists(LETTERS, max_size=8), STOPS)
@settings(max_examples=500, deadline=None)
def test_any_pieces_against_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    matcher, text, out = StopMatcher(stops), "", ""
    for piece in pieces:
        text += piece
        emitted, stopped = matcher.push(piece)
        out += emitted
        hit = first_stop(text, stops)
        assert stopped == (hit is not None)
        if hit:
            assert out == text[: hit[0]] and matcher.matched == text[hit[0] : hit[1]]
            assert matcher.push("more") == ("", True) and matcher.flush() == ""
            return
        assert out == text[: len(text) - held_back(text, stops)]  # no more held back than needed
    assert out + matcher.flush() == text and matcher.matched is None


@pytest.mark.parametrize("stop", ["\n\nUser:", "🙂🙂", "aab"])
def test_every_split_of_a_stop_string(stop: str) -> None:
    text = f"a{stop[:-1]} then {stop} and more"
    before = text.index(stop)
    for first in range(len(text)):
        for second in range(first, len(text)):
            matcher = StopMatcher([stop])
            results = [matcher.push(part) for part in (text[:first], text[first:second], text[second:])]
            assert "".join(part for part, _ in results) == text[:before] and results[-1][1]


def test_the_longer_of_two_that_end_together() -> None:
    matcher = StopMatcher(["d", "cd"])
    assert matcher.push("abcd") == ("ab", True) and matcher.matched == "cd"
    assert StopMatcher("<end>").push("x<end>y") == ("x", True)
    assert StopMatcher().push("anything") == ("anything", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        StopMatcher(["a", ""])


@pytest.mark.parametrize(
    "names, configs, expected",
    [
        # Llama 3.1: config.json lists all three, the tokenizer names one more than its eos
        (
            {
                "<|end_of_text|>": 128001,
                "<|eom_id|>": 128008,
                "<|eot_id|>": 128009,
                "<|begin_of_text|>": 128000,
            },
            [{"eos_token_id": [128001, 128008, 128009]}],
            (128001, 128008, 128009),
        ),
        # Qwen: config.json forgets <|im_end|>
        ({"<|im_start|>": 151644, "<|im_end|>": 151645}, [{"eos_token_id": 151643}], (151643, 151645)),
        # Gemma 3: config.json says 1, the turn's end is known by name; multimodal configs nest
        ({"<end_of_turn>": 106}, [{"text_config": {"eos_token_id": 1}}, None], (1, 106)),
        # harmony: <|end|> closes a message, the reply goes on
        (
            {"<|return|>": 200002, "<|call|>": 200012, "<|end|>": 200007, "<|endoftext|>": 199999},
            [{}, {"eos_token_id": [200002, 199999, 200012]}],
            (199999, 200002, 200012),
        ),
        # Phi 3: the same name ends the reply
        ({"<|end|>": 32007, "<|endoftext|>": 32000}, [{"eos_token_id": 32000}], (32000, 32007)),
        # Gemma 4: </s> is a tag of HTML
        ({"<|tool_response>": 50, "</s>": 212, "<turn|>": 106}, [{"eos_token_id": [1, 106]}], (1, 50, 106)),
        ({}, [None, {}, {"eos_token_id": None}], ()),
    ],
)
def test_stop_ids(names: dict[str, int], configs: list[dict | None], expected: tuple[int, ...]) -> None:
    assert stop_ids(names, *configs) == expected


def test_odd_entries_of_eos_token_id() -> None:
    assert token_ids([1, None, "2", True, -1, 3]) == [1, 3]
    assert token_ids(0) == [0] and token_ids("0") == []
