"""Streamed text against decode() of all ids at once, and against the text that llama.cpp printed."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TINY, as_gguf, gguf_tokenizer, tiny

from xinfer.text.stream import Detokenizer
from xinfer.text.tokenizer import Tokenizer

TOKENIZERS = {
    "byte_level": tiny("byte_level"),
    "spaced": tiny("spaced"),
    "byte_level as gguf": Tokenizer.from_gguf(as_gguf(TINY / "byte_level", "gpt2", "llama-bpe")),
    "spaced as gguf": Tokenizer.from_gguf(as_gguf(TINY / "spaced", "llama", "default")),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
TOKEN_IDS = st.lists(st.integers(-1, 700), max_size=30)


def streamed(
    tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, **more: bool
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [], **more)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@every_tokenizer
@given(ids=TOKEN_IDS, skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_of_any_ids_are_their_text(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip)


@every_tokenizer
@given(text=st.text(st.sampled_from(" aé茶🙂👍🏽\n"), min_size=1), data=st.data())
@settings(max_examples=200, deadline=None)
def test_whole_characters_after_any_prompt(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    """Wherever prompt and reply part, the reply has the rest of the text, an open character included."""
    ids = tokenizer.encode(text)
    cut = data.draw(st.integers(1, len(ids)))
    pieces = streamed(tokenizer, ids[cut:], ids[:cut])
    prompt = tokenizer.decode(ids[:cut]).rstrip("\ufffd")
    assert prompt + "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces) and pieces[-1] == ""


@every_tokenizer
def test_a_character_comes_when_it_is_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂", add_special=False)[-4:]
    assert [tokenizer.token_bytes(token) for token in ids] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]
    assert streamed(tokenizer, ids) == ["", "", "", "🙂", ""]
    assert streamed(tokenizer, ids[:2]) == ["", "", "\ufffd"]
    assert streamed(tokenizer, ids[2:]) == ["\ufffd", "\ufffd", ""]  # can never complete
    assert streamed(tokenizer, [*ids[:2], *ids]) == ["", "", "\ufffd", "", "", "🙂", ""]
    (letter,) = tokenizer.encode("xa", add_special=False)[-1:]
    assert streamed(tokenizer, [*ids[:3], letter]) == ["", "", "", "\ufffda", ""]
    assert tokenizer.bos_id is None or streamed(tokenizer, [*ids[:2], tokenizer.bos_id, *ids[2:]])[-2] == "🙂"


def test_first_space() -> None:
    tokenizer = tiny("spaced")
    the = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b" the")
    assert streamed(tokenizer, [the, the]) == ["the", " the", ""]
    assert streamed(tokenizer, [the], [1]) == ["the", ""]  # after <s> alone nothing has been written yet
    assert streamed(tokenizer, [the], [1, the]) == [" the", ""]
    assert streamed(tokenizer, [1, the], skip_special=False) == ["<s>", " the", ""]


def check_replies(tokenizer: Tokenizer, expected: dict) -> None:
    native = expected["native"]
    for case in [*native["prompts"], *native.get("chat", ())]:
        pieces = streamed(tokenizer, case["generated_ids"], case["prompt_ids"], skip_special=False)
        assert "".join(pieces) == case["generated_text"]


@pytest.mark.parametrize("file", ["stories260K.gguf", "stories260K-moe8x2.F32.gguf"])
def test_replies_of_llama_cpp(shared: Path, file: str) -> None:
    folder = shared / "goldens" / "llama_cpp"
    expected = json.loads((folder / f"oracle_{file.split('.')[0]}.json").read_text("utf-8"))
    check_replies(gguf_tokenizer(folder / file), expected)


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"])
def test_replies_of_llama_cpp_with_real_models(shared: Path, models: Path, name: str) -> None:
    file = models / f"{name}.gguf"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    oracle = shared / "goldens" / "llama_cpp" / f"oracle_{name}.json"
    check_replies(gguf_tokenizer(file), json.loads(oracle.read_text("utf-8")))
