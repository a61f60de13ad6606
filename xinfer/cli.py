"""The command `xinfer`: completions of prompts, or a chat. Nothing heavy is imported before the options are
known to be good, so --help and every mistake answer at once."""

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence

from xinfer import __version__, env
from xinfer.config import DEVICES, DTYPES, LOAD_FORMATS, EngineConfig, did_you_mean
from xinfer.errors import ConfigError, XinferError
from xinfer.sampling import SamplingParams

ENGINE_OPTIONS = (
    "m", "device", "dtype", "load_format", "max_model_len", "max_num_seqs", "prefill_chunk",
    "kv_memory_fraction", "kv_tokens", "seed", "graphs",
)  # fmt: skip
SAMPLING_OPTIONS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "ignore_eos",
)  # fmt: skip
CHAT_MAX_TOKENS = 4096  # a chat reply ends by itself, and Ctrl-C is at hand
EXIT_ERROR, EXIT_INTERRUPTED, EXIT_PIPE = 2, 130, 141  # 128 + the signal's number, as shells report it
CHAT_HELP = "/reset forgets the conversation, /exit leaves, /help is this; Ctrl-C stops a reply"


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are ConfigErrors of one line."""

    def error(self, message: str) -> None:
        raise ConfigError(message.removeprefix("argument "))


def make_parser() -> Parser:
    """The options of the command. One that was not given is absent from the result, so that defaults are
    written in EngineConfig and SamplingParams only."""
    parser = Parser(
        prog="xinfer",
        usage="xinfer --m MODEL (--prompts TEXT [TEXT ...] | --i) [options]",
        description="LLM inference in plain Python: complete prompts, or chat.",
        epilog="environment variables:\n" + "\n".join(f"  {line}" for line in env.describe().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--m", "--model", metavar="MODEL", help="a .gguf file, a folder, a Hugging Face id")
    parser.add_argument("--version", action="version", version=f"xinfer {__version__}")
    parser.add_argument("--quiet", action="store_true", help="print replies and errors only")
    _add_modes(parser.add_argument_group("what to do"))
    _add_engine(parser.add_argument_group("engine"))
    _add_sampling(parser.add_argument_group("sampling"))
    return parser


def _add_modes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--prompts", nargs="+", metavar="TEXT", help="complete these, all at once")
    group.add_argument("--chat", action="store_true", help="put each prompt into the model's chat template")
    group.add_argument("--i", action="store_true", help="chat; " + CHAT_HELP)
    group.add_argument("--system", metavar="TEXT", help="system message, with --i or --chat")


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--device", metavar=_choices(DEVICES), help="default auto: the GPU when there is one")
    add("--cpu", action="store_true", help="the same as --device cpu")
    add("--dtype", metavar=_choices(DTYPES), help="of activations and KV cache; default auto")
    add("--load-format", metavar=_choices(LOAD_FORMATS), help="dummy: seeded noise instead of weights")
    add("--max-model-len", type=int, metavar="N", help="most tokens of a request, prompt and reply")
    add("--max-num-seqs", type=int, metavar="N", help="most requests that run at once; default 8")
    add("--prefill-chunk", type=int, metavar="N", help="most prompt tokens of a step")
    add("--kv-memory-fraction", type=float, metavar="F", help="share of free memory for KV; default 0.9")
    add("--kv-tokens", type=int, metavar="N", help="size of the KV cache in tokens instead")
    add("--seed", type=int, metavar="N", help="of the draws; default 0")
    add("--no-graphs", dest="graphs", action="store_false", help="do not replay decode steps as CUDA graphs")


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    longest = f"most tokens of a reply; default 256, {CHAT_MAX_TOKENS} with --i"
    add("--max-tokens", type=int, metavar="N", help=longest)
    add("--temperature", type=float, metavar="F", help="default 0: always the likeliest token")
    add("--top-k", type=int, metavar="N", help="draw from the N likeliest; default 0: off")
    add("--top-p", type=float, metavar="F", help="draw from the likeliest that together reach F; default 1")
    add("--min-p", type=float, metavar="F", help="least share of the likeliest one's probability; default 0")
    add("--repetition-penalty", type=float, metavar="F", help="of tokens of prompt and reply; default 1: off")
    add("--frequency-penalty", type=float, metavar="F", help="per occurrence in the reply; default 0")
    add("--presence-penalty", type=float, metavar="F", help="of tokens that are in the reply; default 0")
    add("--stop", nargs="+", action="extend", metavar="TEXT", help="end the reply before any of these")
    add("--ignore-eos", action="store_true", help="go on after the model's end token")


def _choices(words: Sequence[str]) -> str:
    return "{" + ",".join(words) + "}"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Options as given, checked against each other. Raises ConfigError."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    known = [word for action in parser._actions for word in action.option_strings]
    for word in rest:
        if word.startswith("-"):
            name = word.partition("=")[0]
            raise ConfigError(f"unknown option {name}{did_you_mean(name, known) or ': see xinfer --help'}")
    if rest:
        raise ConfigError(f"unexpected {rest[0]!r}: prompts are given as --prompts TEXT [TEXT ...]")
    given = vars(args)
    if "m" not in given:
        raise ConfigError("no model given: --m takes a .gguf file, a folder, or a Hugging Face id")
    if ("prompts" in given) == ("i" in given):
        raise ConfigError("give either --prompts TEXT [TEXT ...] to complete text, or --i to chat")
    if "system" in given and not ("i" in given or "chat" in given):
        raise ConfigError("--system is part of a chat: it needs --i or --chat")
    if "cpu" in given and given.setdefault("device", "cpu") != "cpu":
        raise ConfigError(f"--cpu and --device {given['device']} exclude each other")
    for text in [*given.get("prompts", ()), *given.get("stop", ()), given.get("system", "")]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ConfigError(f"{text!r} is not valid text in this terminal's encoding: use UTF-8")
    return args


def main(argv: Sequence[str] | None = None, engine: Callable | None = None) -> int:
    """Run the command and return its exit status: 0, 2 for an error, 130 when interrupted, 141 when nobody
    reads on. `engine` stands in for xinfer.Engine."""
    try:
        return _run(sys.argv[1:] if argv is None else argv, engine)
    except XinferError as error:
        if _debug():
            traceback.print_exc()
        else:
            print("xinfer: error:", " ".join(str(error).split()), file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter flushes at its end.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE


def _debug() -> bool:
    try:
        return env.load().debug
    except ConfigError:
        return False


def _run(argv: Sequence[str], engine: Callable | None) -> int:
    args = vars(parse(argv))
    env.load()
    options = {name: args[name] for name in ENGINE_OPTIONS if name in args}
    EngineConfig.of(**options)
    sampling = {name: args[name] for name in SAMPLING_OPTIONS if name in args}
    if "i" in args:
        sampling.setdefault("max_tokens", CHAT_MAX_TOKENS)
    params = SamplingParams(**sampling)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a character the terminal cannot show must not end a reply
    quiet = "quiet" in args
    with _load(options, engine, quiet) as model:
        try:
            if "i" in args:
                chat(model, params, args.get("system"))
            else:
                complete(model, args["prompts"], params, _template(args))
        finally:
            stats = model.stats()
            if not quiet and stats["prefill_tokens"]:
                print(speeds(stats), file=sys.stderr)
    return 0


def _template(args: dict[str, object]) -> list[dict[str, str]] | None:
    """Messages before each prompt, or None for plain completion."""
    return _opening(args.get("system")) if "chat" in args else None


def _opening(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] if system else []


# -- loading -------------------------------------------------------------------------------------------------


def _load(options: dict[str, object], engine: Callable | None, quiet: bool):
    if engine is None:
        from xinfer.engine import Engine as engine
    begin = time.perf_counter()
    with LoadingBar(quiet) as bar:
        model = engine(progress=bar, **options)
    if not quiet:
        print(model.plan.table(), file=sys.stderr)
        print(f"{options['m']} is ready after {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return model


class LoadingBar:
    """Bytes read and GB/s on the terminal; silent when standard error is not one."""

    def __init__(self, quiet: bool) -> None:
        self.bar = None
        self.silent = quiet or not sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are loaded."""
        if self.silent:
            return
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc="loading", unit="B", unit_scale=True, leave=False)
        self.bar.update(done - self.bar.n)

    def __enter__(self) -> "LoadingBar":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.close()


def speeds(stats: dict[str, object]) -> str:
    """One line: tokens and tokens/s of prefill and of decode."""
    parts = []
    for kind in ("prefill", "decode"):
        tokens, seconds = stats[f"{kind}_tokens"], stats[f"{kind}_seconds"]
        rate = f" at {tokens / seconds:,.1f} tokens/s" if tokens and seconds else ""
        parts.append(f"{kind} {tokens:,} tokens{rate}")
    return ", ".join(parts)


# -- completing ----------------------------------------------------------------------------------------------


def complete(
    model, prompts: Sequence[str], params: SamplingParams, opening: list[dict[str, str]] | None = None
) -> None:
    """Print the replies in the order of the prompts; all run together, and the first unfinished one is shown
    as it grows. `opening`: messages before each prompt in the chat template, None for plain completion."""
    inputs: Sequence[str | list[int]] = prompts
    if opening is not None:
        inputs = [model.chat_ids([*opening, {"role": "user", "content": prompt}]) for prompt in prompts]
    waiting: list[list[str]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    shown = 0
    _head(prompts, 0)
    with contextlib.closing(model.stream_many(inputs, params)) as stream:
        for index, chunk in stream:
            waiting[index].append(chunk.text)
            finished[index] = chunk.finish_reason is not None
            if index == shown:
                _write("".join(waiting[index]))
                waiting[index].clear()
            while shown < len(prompts) and finished[shown]:
                _write("\n")
                shown += 1
                if shown < len(prompts):
                    _head(prompts, shown)
                    _write("".join(waiting[shown]))
                    waiting[shown].clear()


def _head(prompts: Sequence[str], index: int) -> None:
    if len(prompts) > 1:
        line = " ".join(prompts[index].split())
        short = line if len(line) <= 60 else line[:57] + "..."
        gap = "\n" if index else ""
        _write(f"{gap}=== {index + 1}/{len(prompts)}: {short}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# -- chatting ------------------------------------------------------------------------------------------------


def chat(model, params: SamplingParams, system: str | None = None) -> None:
    """Read lines and answer them until /exit or the end of input. Ctrl-C during a reply stops the reply; the
    second in a row, or the second at the prompt, raises KeyboardInterrupt."""
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() then has line editing and history)
        print(CHAT_HELP, file=sys.stderr)
    messages = _opening(system)
    interrupted = False
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            print("\nCtrl-C once more, or /exit, to leave", file=sys.stderr)
            continue
        interrupted = False
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            messages = _opening(system)
        elif line.startswith("/"):
            unknown = "" if line == "/help" else f"no command {line.split()[0]}: "
            print(unknown + CHAT_HELP, file=sys.stderr)
        elif line:
            interrupted = _answer(model, messages, line, params)


def _answer(model, messages: list[dict[str, str]], line: str, params: SamplingParams) -> bool:
    """Print the reply to a line and add both to the conversation; true when Ctrl-C ended it. A line without a
    reply leaves the conversation as it was."""
    said: list[str] = []
    messages.append({"role": "user", "content": line})
    try:
        with _ctrl_c() as pressed, contextlib.closing(model.stream_chat(messages, params)) as stream:
            for chunk in stream:
                said.append(chunk.text)
                _write(chunk.text)
                if pressed:
                    break
    except XinferError as error:
        print(f"xinfer: error: {error} (/reset starts anew)", file=sys.stderr)
    _write("\n")
    text = "".join(said)
    if text:
        messages.append({"role": "assistant", "content": text})
    else:
        messages.pop()
    return bool(pressed)


@contextlib.contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list, so that it does not cut a step in half; a second one breaks in."""
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
