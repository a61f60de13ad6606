"""The promise: greedy bytes, and seeded draws, do not depend on batch, chunking, preemption or streaming.

Checked against the same prompt run alone, in one chunk, with all the memory it wants.
"""

import pytest

from xinfer import SamplingParams

PROMPTS = [[(i * 37 + j * 11) % 250 + 1 for j in range(5 + 25 * i)] for i in range(8)]
ROOM = {"max_model_len": 256, "skip_tokenizer": True}

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, top_p=0.95, top_k=40, seed=7)
PENALIZED = SamplingParams(
    max_tokens=40, ignore_eos=True, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1,
    logit_bias={3: 2.5, 200: -100},
)  # fmt: skip


@pytest.fixture(params=["llama", "gemma3"])
def model(request, tiny):
    return tiny / request.param


@pytest.mark.parametrize("params", [GREEDY, DRAWN, PENALIZED], ids=["greedy", "drawn", "penalized"])
def test_company_and_chunks_change_nothing(engine, model, params):
    alone = engine(model, max_num_seqs=1, **ROOM)
    wanted = [alone.generate([p], params)[0].token_ids for p in PROMPTS]
    assert [alone.generate([p], params)[0].token_ids for p in PROMPTS] == wanted, "not the same twice"
    batch = engine(model, max_num_seqs=8, **ROOM)
    assert [c.token_ids for c in batch.generate(PROMPTS, params)] == wanted, "in a batch"
    chunked = engine(model, max_num_seqs=5, **ROOM, prefill_chunk=32)
    assert [c.token_ids for c in chunked.generate(PROMPTS, params)] == wanted, "in chunks of 32"
    eager = engine(model, max_num_seqs=3, **ROOM, graphs=False)
    assert [c.token_ids for c in eager.generate(PROMPTS, params)] == wanted, "without graphs"


@pytest.mark.parametrize("params", [GREEDY, DRAWN, PENALIZED], ids=["greedy", "drawn", "penalized"])
def test_preemption_changes_nothing(engine, tiny, params):
    """Three replies that outgrow a cache of five pages."""
    prompts = [p[:60] + p[:60] for p in PROMPTS[3:6]]
    roomy = engine(tiny / "qwen3", max_num_seqs=3, **ROOM)
    wanted = [c.token_ids for c in roomy.generate(prompts, params)]
    tight = engine(tiny / "qwen3", max_num_seqs=3, **ROOM, kv_tokens=320)
    assert [c.token_ids for c in tight.generate(prompts, params)] == wanted
    assert tight.stats()["preemptions"] > 0, "the cache was not too small: nothing was tested"
    tight.scheduler.check()


def test_seeds_differ(engine, tiny):
    """Requests without a seed draw from the engine's, each its own; another engine seed draws otherwise."""
    free = SamplingParams(max_tokens=30, ignore_eos=True, temperature=1.0)
    replies = [
        [c.token_ids for c in engine(tiny / "llama", seed=seed, **ROOM).generate([[1, 2, 3]] * 3, free)]
        for seed in (0, 0, 1)
    ]
    assert replies[0] == replies[1]
    assert replies[0] != replies[2]
    assert len({tuple(tokens) for tokens in replies[0]}) == 3


def test_256_tokens(engine, shared):
    """256 greedy tokens of a real model: twice, in a batch of 8 in chunks of 32, the same bytes."""
    path = shared / "goldens" / "llama_cpp" / "stories260K.gguf"
    params = SamplingParams(max_tokens=256, ignore_eos=True)
    story = "Once upon a time, there was a little girl. " * 6
    alone = engine(path, max_num_seqs=1, max_model_len=512)
    wanted = alone.generate(story, params)[0]
    assert len(wanted.token_ids) == 256
    assert alone.generate(story, params)[0].text.encode() == wanted.text.encode()
    company = [story] + [
        f"{name} and the dog" for name in ("Tom", "Lily", "Sam", "Anna", "Ben", "Mia", "Max")
    ]
    batch = engine(path, max_num_seqs=8, max_model_len=512, prefill_chunk=32)
    assert batch.generate(company, params)[0].text.encode() == wanted.text.encode()
