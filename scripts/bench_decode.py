"""Tokens per second of decode and prefill, beside what the memory and the tensor cores could give in the same
run.

scripts/bench_decode.py --m model.gguf
scripts/bench_decode.py --m tests/goldens/configs/llama-3.1-8b --load-format dummy --batch 1 8 --context 1024
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from xinfer import Engine, SamplingParams
from xinfer.errors import XinferError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--m", required=True, help="model: .gguf, folder, or Hugging Face id")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="requests that decode together")
    parser.add_argument(
        "--context", type=int, default=1024, help="prompt tokens of each before decode is timed"
    )
    parser.add_argument("--tokens", type=int, default=128, help="tokens decoded by each")
    parser.add_argument(
        "--prefill", type=int, default=4096, help="prompt tokens whose prefill is timed; 0: none"
    )
    parser.add_argument("--prefill-chunk", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-graphs", action="store_true")
    args = parser.parse_args()
    longest = max(args.prefill, args.context + args.tokens) + 64
    started = time.perf_counter()
    with Engine(
        args.m,
        device=args.device,
        load_format=args.load_format,
        max_num_seqs=max(args.batch),
        max_model_len=longest,
        prefill_chunk=args.prefill_chunk,
        graphs=not args.no_graphs,
    ) as engine:
        print(f"{engine.model.device.name}, ready in {time.perf_counter() - started:.1f} s")
        print(engine.plan.table())
        bandwidth = _bandwidth(engine)
        for batch in args.batch:
            report_decode(engine, batch, args.context, args.tokens, bandwidth)
        if args.prefill:
            report_prefill(engine, args.prefill)
    return 0


def report_decode(engine: Engine, batch: int, context: int, tokens: int, bandwidth: float | None) -> None:
    """One line: tokens/s, bytes that a step must read, and their rate."""
    _run(engine, batch, context, 8)  # captures the graph of this size
    before = engine.stats()
    _run(engine, batch, context, tokens)
    after = engine.stats()
    steps = after["decode_steps"] - before["decode_steps"]
    took = (after["decode_seconds"] - before["decode_seconds"]) / steps
    read = step_bytes(engine, batch, context + tokens // 2)
    line = f"decode  batch {batch:3d}, context {context}: {batch / took:9.1f} tokens/s, "
    line += f"{took * 1e3:7.3f} ms a step, "
    line += f"{read / batch / 1e9:6.3f} GB a token, {read / took / 1e12:5.3f} TB/s"
    if bandwidth:
        line += f" = {read / took / bandwidth:.3f} of the {bandwidth / 1e12:.3f} TB/s that a read reaches"
    print(line, flush=True)


def report_prefill(engine: Engine, tokens: int) -> None:
    """One line: tokens/s of a prompt's prefill and the rate of its matmuls, beside torch's."""
    _run(engine, 1, tokens, 1)
    best = float("inf")
    for _ in range(3):
        before = engine.stats()["prefill_seconds"]
        _run(engine, 1, tokens, 1)
        best = min(best, engine.stats()["prefill_seconds"] - before)
    flops = 2 * matmul_weights(engine) * tokens
    line = f"prefill {tokens} tokens: {tokens / best:9.1f} tokens/s, {best * 1e3:.1f} ms, "
    line += f"{flops / best / 1e12:.1f} TFLOP/s"
    if engine.model.device.kind == "cuda":
        from ceilings import torch_matmul_rate

        spec = engine.model.spec
        rate = torch_matmul_rate(tokens, 2 * spec.layers[0].ffn.width, spec.dim)
        if rate:
            line += f" = {flops / best / rate:.3f} of torch.matmul's {rate / 1e12:.1f}"
    print(line, flush=True)


def matmul_weights(engine: Engine) -> int:
    """Weights that each token is multiplied with, without the embedding and the head."""
    total = 0
    for layer in engine.model.spec.layers:
        a, dim = layer.attention, engine.model.spec.dim
        total += dim * a.head_dim * (2 * a.heads + 2 * a.kv_heads) + 3 * dim * layer.ffn.width
    return total


def step_bytes(engine: Engine, batch: int, context: int) -> int:
    """Bytes a decode step has to read: every weight but the embedding's rows, and each request's keys and
    values."""
    model = engine.model
    embedding = 0 if model.spec.tied else model.weights["embed"].nbytes
    kv = 0
    for layer in model.spec.layers:
        a = layer.attention
        seen = min(context, a.window) if a.window else context
        kv += 2 * seen * a.kv_heads * a.head_dim * engine.plan.act.itemsize
    return engine.plan.weight_bytes - embedding + batch * kv


def _run(engine: Engine, batch: int, context: int, tokens: int) -> None:
    vocab = engine.model.spec.vocab
    prompts = [[(i * 7919 + j * 104729) % (vocab - 8) for j in range(context)] for i in range(batch)]
    engine.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))


def _bandwidth(engine: Engine) -> float | None:
    if engine.model.device.kind != "cuda":
        return None
    from ceilings import read_bandwidth

    return read_bandwidth(engine.model.device)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except XinferError as error:
        sys.exit(f"bench_decode: {error}")
