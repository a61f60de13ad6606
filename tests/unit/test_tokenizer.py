"""Token ids against llama.cpp (GGUF vocabularies), and against `tokenizers` (tokenizer.json)."""

import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from vocabularies import KEY, TINY, as_gguf, folder_tokenizer, gguf_metadata, gguf_tokenizer, tiny

from xinfer.errors import CheckpointError, RequestError, UnsupportedError
from xinfer.text.bpe import byte_alphabet
from xinfer.text.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from xinfer.text.tokenizer import Tokenizer

VOCABULARIES = ("deepseek-llm", "falcon", "gpt-2", "llama-spm", "mpt", "phi-3")
TINY_NAMES = ("byte_level", "spaced")
SEPARATOR = "\n__ggml_vocab_test__\n"
HARD = [
    "",
    " ",
    "  two  spaces  ",
    "\n\n\n\ttabs\t\tand\r\nlines\n",
    "The quick brown fox doesn't mind; it'S 12345 foxes!!!",
    "Größe, déjà vu, лиса, 茶色の狐, कक्षि, 🙂👍🏽, e\u0301\u0323",
    "null \x00 and \x7f, nbsp \u00a0\u2003 thin, bom \ufeff, \u2581 lower block",
    "<|eot_id|><|begin|> <think> hmm </think> <s>a</s> <0x41> <unk>",
    "def f(x):\n    return [i ** 2 for i in range(x)]\n",
]


def cases(shared: Path, name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's own texts and ids of a vocabulary."""
    place = shared / "goldens" / "vocab" / f"ggml-vocab-{name}.gguf"
    texts = place.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)[:-1]
    lines = place.with_suffix(".gguf.out").read_text().split("\n")[: len(texts)]
    return [(text, [int(item) for item in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_llama_cpp(shared: Path, name: str) -> None:
    tokenizer = gguf_tokenizer(shared / "goldens" / "vocab" / f"ggml-vocab-{name}.gguf")
    expected = cases(shared, name)
    assert len(expected) == 46
    wrong = [text for text, ids in expected if tokenizer.encode(text, add_special=False) != ids]
    assert not wrong


@pytest.mark.parametrize("name", VOCABULARIES)
def test_decode_gives_the_text_back(shared: Path, name: str) -> None:
    tokenizer = gguf_tokenizer(shared / "goldens" / "vocab" / f"ggml-vocab-{name}.gguf")
    for text, ids in cases(shared, name):
        assert tokenizer.decode(ids) == text


def oracle(shared: Path, name: str) -> dict:
    return json.loads((shared / "goldens" / "llama_cpp" / f"oracle_{name}.json").read_text(encoding="utf-8"))


def check_oracle(tokenizer: Tokenizer, expected: dict) -> None:
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (expected["n_vocab"], expected["bos"])
    assert (tokenizer.eos_id, tokenizer.add_bos) == (expected["eos"], expected["add_bos"])
    for case in expected["tokenizer_cases"]:
        for parse, key in ((True, "ids_parse_special"), (False, "ids_plain")):
            assert tokenizer.encode(case["text"], False, parse) == case[key]
    for prompt in expected["native"]["prompts"]:
        assert tokenizer.encode(prompt["prompt"]) == prompt["prompt_ids"]
    for chat in expected["native"].get("chat", ()):
        assert tokenizer.encode_prompt(chat["rendered"]) == chat["prompt_ids"]


@pytest.mark.parametrize("file", ["stories260K.gguf", "stories260K-moe8x2.F32.gguf"])
def test_prompts_of_llama_cpp(shared: Path, file: str) -> None:
    tokenizer = gguf_tokenizer(shared / "goldens" / "llama_cpp" / file)
    check_oracle(tokenizer, oracle(shared, file.split(".")[0]))


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"])
def test_prompts_of_llama_cpp_with_real_models(shared: Path, models: Path, name: str) -> None:
    file = models / f"{name}.gguf"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    check_oracle(gguf_tokenizer(file), oracle(shared, name))


@pytest.mark.parametrize(
    "name, model, pre, vocab",
    [
        ("qwen3", "gpt2", "qwen2", "qwen2"),
        ("llama3_1", "gpt2", "llama-bpe", "llama-bpe"),
        ("gemma3", "gemma4", "gemma4", None),
    ],
)
def test_ids_of_real_tokenizer_json(
    shared: Path, models: Path, name: str, model: str, pre: str, vocab: str | None
) -> None:
    """As it stands and rebuilt as a GGUF vocabulary. Gemma 4's rules give Gemma 3's ids too."""
    folder = models / "tokenizers" / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"{folder} has no tokenizer.json")
    file = shared / "goldens" / "tokenizers" / "tokenizer_goldens_hf.json"
    expected = [(case["text"], case["ids"]) for case in json.loads(file.read_text("utf-8"))[name]]
    direct, rebuilt = folder_tokenizer(folder), Tokenizer.from_gguf(as_gguf(folder, model, pre))
    for text, ids in expected:
        assert direct.encode(text, add_special=False) == ids
        assert rebuilt.encode(text, add_special=False) == ids
    for text, ids in cases(shared, vocab) if vocab else ():
        assert rebuilt.encode(text, add_special=False) == ids


@pytest.mark.parametrize("name", TINY_NAMES)
@given(st.text() | st.sampled_from(HARD))
@settings(max_examples=150, deadline=None)
def test_folder_against_the_library(name: str, text: str) -> None:
    library = Library.from_file(str(TINY / name / "tokenizer.json"))
    tokenizer = tiny(name)
    ids = library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special=False) == ids
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode(ids, skip_special=True) == library.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "name, model, pre", [("byte_level", "gpt2", "llama-bpe"), ("spaced", "llama", "default")]
)
@pytest.mark.parametrize("text", HARD)
def test_gguf_against_the_library(name: str, model: str, pre: str, text: str) -> None:
    tokenizer = Tokenizer.from_gguf(as_gguf(TINY / name, model, pre))
    if name == "spaced":  # SentencePiece's space after a special token is llama.cpp's, not the library's
        text = text.replace("<s>", "").replace("</s>", "").replace("<unk>", "").replace("<0x41>", "")
    library = Library.from_file(str(TINY / name / "tokenizer.json"))
    assert tokenizer.encode(text, add_special=False) == library.encode(text, add_special_tokens=False).ids


@given(st.lists(st.integers(-2, 500)))
@settings(max_examples=100, deadline=None)
def test_any_ids_decode_as_in_the_library(ids: list[int]) -> None:
    known = [i for i in ids if 0 <= i < tiny("byte_level").vocab_size]
    library = Library.from_file(str(TINY / "byte_level" / "tokenizer.json"))
    assert tiny("byte_level").decode(ids) == library.decode(known)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_words_merge_alone_as_in_the_whole_text(text: str) -> None:
    """Cutting text into cached words changes nothing: against one merge over all of it."""
    codec = Tokenizer.from_gguf(as_gguf(TINY / "spaced", "llama", "default"))._codec
    text = text.replace("<", "")
    whole = (" " + text).replace(" ", "\u2581") if text else ""
    ids = [token for piece in codec._merge(whole) for token in codec._lookup(piece)]
    assert codec.encode(text, parse_special=True) == ids


def test_special_tokens_are_parsed_only_on_request() -> None:
    tokenizer = tiny("byte_level")
    eot = tokenizer.encode("<|eot_id|>", add_special=False)
    assert len(eot) == 1 and eot[0] in tokenizer.eos_ids
    plain = tokenizer.encode("<|eot_id|>", add_special=False, parse_special=False)
    assert len(plain) > 1 and tokenizer.decode(plain) == "<|eot_id|>"
    assert tokenizer.decode(eot) == "" and tokenizer.decode(eot, skip_special=False) == "<|eot_id|>"
    for parse in (True, False):  # text of the user's own, not a control token
        assert len(tokenizer.encode("<think>", False, parse)) == 1
    assert tokenizer.decode(tokenizer.encode("<think>")) == "<think>"


@pytest.mark.parametrize("name, bos", [("byte_level", "<|begin|>"), ("spaced", "<s>")])
def test_bos_is_never_doubled(name: str, bos: str) -> None:
    tokenizer = tiny(name)
    assert tokenizer.add_bos and tokenizer.bos_id is not None
    with_bos, without = tokenizer.encode_prompt(bos + "Hi"), tokenizer.encode_prompt("Hi")
    assert with_bos.count(tokenizer.bos_id) == without.count(tokenizer.bos_id) == 1
    assert with_bos[0] == without[0] == tokenizer.bos_id
    assert tokenizer.encode("Hi", add_special=False).count(tokenizer.bos_id) == 0


def test_token_bytes() -> None:
    spaced, letters = tiny("spaced"), tiny("byte_level")
    assert spaced.token_bytes(3 + 0x0A) == b"\n" and spaced.token_bytes(1) == b"<s>"
    assert b" the" in {spaced.token_bytes(i) for i in range(spaced.vocab_size)}
    assert {letters.token_bytes(i) for i in range(256)} == {bytes([byte]) for byte in range(256)}
    for token in (-1, 1 << 20, 1 << 40):
        assert spaced.token_bytes(token) == letters.token_bytes(token) == b""
    assert sorted(byte_alphabet().values()) == list(range(256))


def spm(**changes: object) -> Tokenizer:
    """A vocabulary of a few letters: 0 <unk> 1 <s> 2 </s> 3 "▁" 4 a 5 b 6 ab 7 ▁a 8 <|end|>."""
    return Tokenizer.from_gguf(
        {
            KEY + "model": "llama",
            KEY + "tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a", "<|end|>"],
            KEY + "scores": [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, 0.0],
            KEY + "token_type": [2, 3, 3, 1, 1, 1, 1, 1, 3],
            KEY + "bos_token_id": 1,
            KEY + "eos_token_id": 2,
            **changes,
        }
    )


def test_sentencepiece_rules() -> None:
    assert spm().encode("ab") == [1, 7, 5]  # "▁a" has the better score than "ab"
    assert spm(**{KEY + "add_space_prefix": False}).encode("ab") == [1, 6]
    assert spm(**{KEY + "add_bos_token": False, KEY + "add_eos_token": True}).encode("ab") == [7, 5, 2]
    assert spm().encode("a<|end|>b", add_special=False) == [7, 8, 3, 5]
    assert spm(**{"general.name": "Phi-3 mini"}).encode("a<|end|>  b", add_special=False) == [7, 8, 3, 5]
    assert spm().encode("é", add_special=False) == [3, 0, 0]  # no byte tokens: one <unk> for each byte
    assert spm().decode([1, 7, 5, 8]) == "ab" and spm().decode([7, 7]) == "a a"
    assert spm(**{KEY + "add_space_prefix": False}).decode([7, 5]) == " ab"
    assert spm().eos_ids == (2, 8) and spm().special_names["bos_token"] == "<s>"
    assert spm(**{KEY + "eot_token_id": 5}).eos_ids == (2, 5, 8)
    assert spm(**{KEY + "bos_token_id": 0xFFFFFFFF}).bos_id == 1  # "none", and the family has one


def test_end_token_typed_as_text_is_a_special_token() -> None:
    kinds = [2, 3, 3, 1, 1, 1, 1, 1, 1]
    tokenizer = spm(**{KEY + "token_type": kinds})
    assert tokenizer.encode("<|end|>", add_special=False) == [8] and 8 in tokenizer.eos_ids
    assert 8 not in tokenizer.encode("<|end|>", add_special=False, parse_special=False)


def bpe(
    pre: str | None, tokens: tuple[str, ...] = (), merges: tuple[str, ...] = (), **more: object
) -> Tokenizer:
    """The byte alphabet, then the given tokens."""
    names = [*byte_alphabet(), *tokens]
    keys = {KEY + "model": "gpt2", KEY + "tokens": names, KEY + "merges": list(merges)}
    return Tokenizer.from_gguf(keys | ({} if pre is None else {KEY + "pre": pre}) | more)


# What the families' published patterns say, worked out by hand.
CUTS = {
    ("llama-bpe", "I'LL see 12345\n\n x"): ["I", "'LL", " see", " ", "123", "45", "\n\n", " x"],
    ("glm4", "a1234"): ["a", "123", "4"],
    ("qwen2", "don't 123"): ["don", "'t", " ", "1", "2", "3"],
    ("deepseek-r1-qwen", "x=12"): ["x", "=", "1", "2"],
    ("qwen2", "कि"): ["क", "\u093f"],
    ("qwen35", "कि 12"): ["कि", " ", "1", "2"],
    ("tekken", "HelloWorld's 12"): ["Hello", "World", "'s", " ", "1", "2"],
    ("gpt-4o", "HelloWorld's 1234 a//\n"): ["Hello", "World's", " ", "123", "4", " a", "//\n"],
    ("minimax-m2", "ABCdef"): ["ABCdef"],
    ("deepseek-v3", "12345中文a.b"): ["123", "45", "中文", "a", ".b"],
    ("refact", "x12 ab"): ["x", "1", "2", " ab"],
    ("smollm", "x12 's"): ["x", "1", "2", " '", "s"],
    ("olmo", "we'll 123  go"): ["we", "'ll", " 123", " ", " go"],
    ("default", "a+b 12345"): ["a", "+", "b", " ", "123", "45"],
}


@pytest.mark.parametrize("pre, text", CUTS)
def test_words_of_a_family(pre: str, text: str) -> None:
    library = bpe(pre)._codec.library
    decoded = [
        bytes(byte_alphabet()[letter] for letter in word).decode()
        for word, _ in library.pre_tokenizer.pre_tokenize_str(text)
    ]
    assert decoded == CUTS[pre, text]


@pytest.mark.parametrize("pre", sorted(name for name, rules in PRE_TOKENIZERS.items() if rules.byte_level))
def test_every_family_keeps_every_byte(pre: str) -> None:
    tokenizer = bpe(pre)
    text = "".join(HARD[:-2]).replace("e\u0301\u0323", "")  # NFC would compose these
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_families_differ_in_more_than_words() -> None:
    merges = ("a b", "ab c")
    tokens = ("ab", "abc", "bcd", "abcd")
    ids = {name: 256 + i for i, name in enumerate(tokens)}
    assert bpe("llama-bpe", tokens, merges).encode("abcd") == [ids["abcd"]]  # a word that is a token
    letter_d = bpe("qwen2", tokens, merges).encode("d")
    assert bpe("qwen2", tokens, merges).encode("abcd") == [ids["abc"], *letter_d]
    assert bpe("qwen2").encode("e\u0301") == bpe("qwen2").encode("\u00e9") != bpe("tekken").encode("e\u0301")
    bos = {KEY + "bos_token_id": 7}
    assert bpe("tekken", **bos).add_bos and not bpe("qwen2", **bos).add_bos
    assert not bpe("tekken", **bos, **{KEY + "add_bos_token": False}).add_bos


def test_gemma4_rules() -> None:
    tokens = ["<pad>", "<eos>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "a", "b", "\u2581a", "\n", "\n\n", "//", "//", "/"]
    ids = {name: i for i, name in enumerate(tokens)}
    metadata = {
        KEY + "model": "gemma4",
        KEY + "tokens": tokens,
        KEY + "token_type": [3, 3, 3, *[6] * 256, *[1] * 9],
        KEY + "merges": ["\u2581 a", "/ /"],
        KEY + "bos_token_id": 2,
        KEY + "eos_token_id": 1,
        KEY + "add_bos_token": False,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    text = "a a\n\n\nb é//"
    found = tokenizer.encode(text)
    names = ["<bos>", "a", "\u2581a", "\n\n", "\n", "b", "\u2581", "<0xC3>", "<0xA9>", "//"]
    assert found == [ids[name] for name in names]
    assert tokenizer.decode(found) == text
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.token_bytes(tokens.index("//")) == b"//"  # of two ids the first is never made, but read


def test_file_without_pre_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert bpe(None).encode("a 1") == bpe("default").encode("a 1")
    assert "tokenizer.ggml.pre" in caplog.text
    with pytest.raises(UnsupportedError, match=r"'ufo'.*qwen2"):
        pre_tokenizer("ufo")


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"model": "bert"}, UnsupportedError, "'bert'.*gemma4, gpt2, llama"),
        ({"tokens": None}, CheckpointError, "no tokenizer.ggml.tokens"),
        ({"scores": [0.0]}, CheckpointError, "scores has 1 entries, the vocabulary 9"),
        ({"token_type": [1, 1]}, CheckpointError, "token_type has 2"),
        ({"eos_token_id": "two"}, CheckpointError, "eos_token_id is 'two'"),
        ({"model": "gpt2", "pre": "qwen2"}, CheckpointError, "no tokenizer.ggml.merges"),
        ({"model": "gpt2", "pre": "qwen2", "merges": ["ab"]}, CheckpointError, "'ab'"),
        ({"model": "gpt2", "pre": "qwen2", "merges": ["b a"]}, CheckpointError, "'b a'"),
    ],
)
def test_broken_metadata(change: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        spm(**{KEY + name: value for name, value in change.items()})
    assert "\n" not in str(caught.value)


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_hf_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"tokenizer\.model"):
        Tokenizer.from_hf_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_hf_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((TINY / "spaced" / "tokenizer.json").read_bytes())
    for text, says in (
        ("[]", "a list where"),
        ("{", "not JSON"),
        ('{"added_tokens_decoder": {"x": 1}}', "malformed"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(CheckpointError, match=says):
            Tokenizer.from_hf_folder(tmp_path)


def test_folder_flags_and_stops(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TINY / "spaced" / name).read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    extra = {"679": {"content": "<|im_end|>", "special": True}}
    config |= {"add_bos_token": False, "add_eos_token": True, "added_tokens_decoder": extra}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 5}}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 6]}')
    tokenizer = Tokenizer.from_hf_folder(tmp_path)
    assert not tokenizer.add_bos and tokenizer.add_eos
    assert tokenizer.encode("a")[-1] == 2 and tokenizer.vocab_size == 680
    assert tokenizer.eos_ids == (2, 5, 6, 679)
    assert tokenizer.encode("<|im_end|>", add_special=False) == [679]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="character 1 is half"):
        tiny("spaced").encode("a\ud83d")


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2"])
def test_speed(shared: Path, name: str) -> None:
    """100 kB: 0.2 s and 0.06 s measured, 0.5 s for SentencePiece without a single space."""
    tokenizer = gguf_tokenizer(shared / "goldens" / "vocab" / f"ggml-vocab-{name}.gguf")
    text = (shared / "goldens" / "text" / "tinyshakespeare.txt").read_text()[:100_000]
    for sample in (text, "".join(text.split())):
        began = time.process_time()
        ids = tokenizer.encode(sample)
        assert time.process_time() - began < 3
        assert tokenizer.decode(ids) == sample


def test_metadata_keys_of_a_real_file(shared: Path) -> None:
    metadata = gguf_metadata(shared / "goldens" / "llama_cpp" / "stories260K.gguf")
    assert metadata[KEY + "model"] == "llama" and len(metadata[KEY + "tokens"]) == 512
