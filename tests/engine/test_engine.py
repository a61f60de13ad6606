"""The engine's surface, on a real tokenizer and a tiny model: llama.cpp's text, and generate() as the
witness."""

import pytest

from xinfer import Engine, SamplingParams
from xinfer.errors import CheckpointError, ConfigError, OutOfMemoryError, RequestError, UnsupportedError


@pytest.fixture
def stories(engine, shared):
    return engine(shared / "goldens" / "llama_cpp" / "stories260K.gguf", max_model_len=256, max_num_seqs=4)


PROMPT = "Once upon a time"
LONG = SamplingParams(max_tokens=48)


def test_stream_is_generate(stories):
    whole = stories.generate(PROMPT, LONG)[0]
    chunks = list(stories.stream(PROMPT, LONG))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert whole.text.startswith(", there was a little girl named Lily.")


def test_streams_interleave(stories):
    """Two readers of one engine, one of them slow, get what each would get alone."""
    wanted = [stories.generate(p, LONG)[0].text for p in (PROMPT, "The dog")]
    first, second = stories.stream(PROMPT, LONG), stories.stream("The dog", LONG)
    texts = ["", ""]
    for i in range(1000):
        chunk = next(second if i % 3 else first, None)
        if chunk is not None:
            texts[1 if i % 3 else 0] += chunk.text
    assert texts == wanted


def test_closing_a_stream_frees_everything(stories):
    free = stories.stats()["kv_pages_free"]
    stream = stories.stream(PROMPT, LONG)
    next(stream)
    assert stories.stats()["unfinished"] == 1
    stream.close()
    assert stories.stats()["unfinished"] == 0
    assert stories.stats()["kv_pages_free"] == free
    stories.scheduler.check()


def test_stop_string(stories):
    whole = stories.generate(PROMPT, LONG)[0].text
    stop = whole[20:26]
    reply = stories.generate(PROMPT, SamplingParams(max_tokens=48, stop=stop))[0]
    assert reply.text == whole[: whole.index(stop)]
    assert reply.finish_reason == "stop"
    assert stories.stats()["unfinished"] == 0


def test_stop_token(stories):
    tokens = stories.generate(PROMPT, LONG)[0].token_ids
    reply = stories.generate(PROMPT, SamplingParams(max_tokens=48, stop_token_ids=[tokens[7]]))[0]
    assert reply.token_ids == tokens[: tokens.index(tokens[7]) + 1]
    assert reply.finish_reason == "stop"


def test_prompt_forms(stories):
    """Text, ids, and lists of both are the same prompts."""
    ids = stories.tokenizer.encode(PROMPT)
    wanted = stories.generate(PROMPT, LONG)[0].token_ids
    assert stories.generate(ids, LONG)[0].token_ids == wanted
    assert [c.token_ids for c in stories.generate([ids, PROMPT], [LONG, LONG])] == [wanted, wanted]


@pytest.mark.parametrize(
    "prompt, params, says",
    [
        ([], None, "no prompt"),
        ([[]], None, "empty"),
        ([5000], None, "5000"),
        ([-1], None, "-1"),
        ([1] * 300, None, "300"),
        ([1], SamplingParams(logit_bias={9999: 1}), "9999"),
        ([[1], [2]], [LONG], "2 prompts"),
    ],
)
def test_bad_requests_lose_nothing(stories, prompt, params, says):
    with pytest.raises(RequestError, match=says):
        stories.generate(prompt, params)
    assert stories.stats()["unfinished"] == 0
    assert stories.generate(PROMPT, LONG)[0].text


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"stop": [""]}])
def test_bad_params(bad):
    with pytest.raises(RequestError):
        SamplingParams(**bad)


def test_bad_models(tmp_path, tiny, device):
    def fails(error, path, says, **options):
        with pytest.raises(error, match=says) as caught:
            Engine(path, device=device, **options)
        assert "\n" not in str(caught.value)

    fails(ConfigError, tmp_path / "none.gguf", "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGML" + bytes(100))
    fails(CheckpointError, tmp_path / "bad.gguf", "bad.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    fails(CheckpointError, folder, "config.json")
    (folder / "config.json").write_text('{"model_type": "grok"}')
    fails(UnsupportedError, folder, "llama")
    fails(ConfigError, tiny / "llama", "did you mean 'max_model_len'", max_model_length=5)
    fails(ConfigError, tiny / "llama", "max_model_len", max_model_len=1 << 29, skip_tokenizer=True)
    fails(OutOfMemoryError, tiny / "llama", "kv_tokens", kv_tokens=1 << 38, skip_tokenizer=True)
