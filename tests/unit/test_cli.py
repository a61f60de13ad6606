"""The command line against a stand-in for the engine: what reaches the engine, what is printed where, and the
exit status of every way to end."""

import builtins
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from xinfer import __version__, cli, env
from xinfer.config import EngineConfig
from xinfer.errors import CheckpointError, RequestError
from xinfer.reply import Chunk
from xinfer.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("numba", "numpy", "cuda", "tokenizers", "huggingface_hub", "jinja2", "tqdm", "xinfer.engine")


class FakeEngine:
    """Answers all prompts in turn, a word a step. `replies`: the words by prompt, "a reply" otherwise."""

    def __init__(self, replies: dict[object, str] | None = None, error: Exception | None = None) -> None:
        self.replies, self.error = replies or {}, error
        self.options: dict[str, object] = {}
        self.asked: list[object] = []
        self.params: SamplingParams | None = None
        self.closed = self.cancelled = 0
        self.plan = SimpleNamespace(table=lambda: "weights 1 GiB")
        self.on_word: Callable[[str], None] = lambda word: None

    def __call__(self, progress: Callable[[int, int], None], **options: object) -> "FakeEngine":
        if self.error:
            raise self.error
        self.options = options
        progress(1 << 20, 2 << 20)
        progress(2 << 20, 2 << 20)
        return self

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed += 1

    def chat_ids(self, messages: list[dict[str, str]]) -> tuple[str, ...]:
        return tuple(f"{message['role']}:{message['content']}" for message in messages)

    def stream_many(self, prompts: list[object], params: SamplingParams) -> Iterator[tuple[int, Chunk]]:
        self.asked += prompts
        self.params = params
        words = {i: self.replies.get(p, "a reply").split(" ") for i, p in enumerate(prompts)}
        try:
            for step in range(max(map(len, words.values()))):
                for index, its in words.items():
                    if step < len(its):
                        self.on_word(its[step])
                        space = " " if step else ""
                        reason = "stop" if step == len(its) - 1 else None
                        yield index, Chunk(space + its[step], [step], reason)
        except GeneratorExit:
            self.cancelled += 1
            raise

    def stream_chat(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[Chunk]:
        if any(message["content"] == "too long" for message in messages):
            raise RequestError("the prompt is too long")
        many = self.stream_many([self.chat_ids(messages)], params)
        try:
            for _, chunk in many:
                yield chunk
        finally:
            many.close()

    def stats(self) -> dict[str, object]:
        tokens = 10 * len(self.asked)
        return {
            "prefill_tokens": tokens,
            "prefill_seconds": 0.5,
            "decode_tokens": 1000,
            "decode_seconds": 4.0,
        }


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.TABLE:
        monkeypatch.delenv(variable.name, raising=False)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the lines that input() will return; an exception among them is raised."""

    def give(*lines: object) -> None:
        left = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(left, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr(builtins, "input", read)

    return give


@pytest.mark.parametrize("name", ["chat_ids", "stream_many", "stream_chat", "stats"])
def test_the_stand_in_is_called_like_the_engine(name: str) -> None:
    from xinfer import Engine

    stand_in = list(inspect.signature(getattr(FakeEngine, name)).parameters)
    assert list(inspect.signature(getattr(Engine, name)).parameters)[: len(stand_in)] == stand_in


# -- completing


def test_one_prompt_is_only_its_reply(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine({"The capital of France is": " Paris ."})
    assert cli.main(["--m", "x.gguf", "--prompts", "The capital of France is"], engine) == 0
    out, err = capsys.readouterr()
    assert out == " Paris .\n"
    assert "weights 1 GiB\nx.gguf is ready after" in err
    assert err.endswith("prefill 10 tokens at 20.0 tokens/s, decode 1,000 tokens at 250.0 tokens/s\n")
    assert engine.options == {"m": "x.gguf"} and engine.params == SamplingParams() and engine.closed == 1


def test_several_prompts_run_together_and_print_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine({"first": "one two three four", "second\nline": "1", "third " * 30: "a b c d e f"})
    prompts = ["first", "second\nline", "third " * 30]
    assert cli.main(["--m", "x", "--quiet", "--prompts", *prompts], engine) == 0
    out, err = capsys.readouterr()
    third = ("third " * 30)[:57]
    assert out == (
        f"=== 1/3: first\none two three four\n\n=== 2/3: second line\n1\n\n=== 3/3: {third}...\na b c d e f\n"
    )
    assert err == "" and engine.asked == prompts


def test_chat_applies_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    assert cli.main(["--m", "x", "--chat", "--system", "Be brief", "--prompts", "Hi", "Ho"], engine) == 0
    assert engine.asked == [("system:Be brief", "user:Hi"), ("system:Be brief", "user:Ho")]


def test_options_reach_the_engine() -> None:
    engine = FakeEngine()
    words = (
        "--model org/x --prompts p --cpu --dtype f32 --load-format dummy --max-model-len 100 --max-num-seqs 2"
        " --prefill-chunk 128 --kv-memory-fraction 0.5 --kv-tokens 640 --seed 7 --no-graphs"
        " --max-tokens 9 --temperature 0.7 --top-k 5 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1"
        " --frequency-penalty 0.2 --presence-penalty 0.3 --stop a b --stop c --ignore-eos"
    )
    assert cli.main(words.split(), engine) == 0
    assert EngineConfig.of(**engine.options) == EngineConfig(
        m="org/x",
        device="cpu",
        dtype="f32",
        load_format="dummy",
        max_model_len=100,
        max_num_seqs=2,
        prefill_chunk=128,
        kv_memory_fraction=0.5,
        kv_tokens=640,
        seed=7,
        graphs=False,
    )
    assert engine.params == SamplingParams(
        max_tokens=9,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        stop=["a", "b", "c"],
        ignore_eos=True,
    )


# -- mistakes


@pytest.mark.parametrize(
    "words, message",
    [
        ("--m x --prompts p --tempreture 1", "unknown option --tempreture; did you mean '--temperature'?"),
        ("--m x --prompts p --tempreture=1", "unknown option --tempreture; did you mean '--temperature'?"),
        ("--m x --prompts p --zzzz", "unknown option --zzzz: see xinfer --help"),
        ("--m x --prompts p --temp 1", "unknown option --temp; did you mean '--"),
        ("hello --m x", "unexpected 'hello': prompts are given as --prompts TEXT [TEXT ...]"),
        ("--prompts p", "no model given: --m takes a .gguf file, a folder, or a Hugging Face id"),
        ("--m x", "give either --prompts TEXT [TEXT ...] to complete text, or --i to chat"),
        ("--m x --i --prompts p", "give either --prompts"),
        ("--m x --prompts p --system s", "--system is part of a chat: it needs --i or --chat"),
        ("--m x --prompts p --cpu --device cuda", "--cpu and --device cuda exclude each other"),
        ("--m x --prompts p --max-tokens many", "--max-tokens: invalid int value: 'many'"),
        ("--m x --prompts p --max-tokens 0", "max_tokens must be at least 1, not 0"),
        ("--m x --prompts p --temperature nan", "temperature must be at least 0, not nan"),
        ("--m x --prompts p --device gpu", "device must be one of auto, cuda, cpu, not 'gpu'; did you mean"),
        ("--m x --prompts", "--prompts: expected at least one argument"),
        ("--m x --prompts \udcff", "'\\udcff' is not valid text in this terminal's encoding: use UTF-8"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    assert cli.main(words.split(), engine) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"xinfer: error: {message}") and err.count("\n") == 1
    assert not engine.options


def test_engine_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(error=CheckpointError("x.gguf is cut\nshort"))
    assert cli.main(["--m", "x", "--prompts", "p"], engine) == 2
    assert capsys.readouterr().err == "xinfer: error: x.gguf is cut short\n"
    monkeypatch.setenv("XINFER_DEBUG", "1")
    assert cli.main(["--m", "x", "--prompts", "p"], engine) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("XINFER_DEBUGG", "1")
    assert cli.main(["--m", "x", "--prompts", "p"], engine) == 2
    assert "did you mean 'XINFER_DEBUG'?" in capsys.readouterr().err


def test_interrupt_and_broken_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(word: str) -> None:
        raise KeyboardInterrupt

    engine = FakeEngine()
    engine.on_word = interrupt
    assert cli.main(["--m", "x", "--prompts", "p"], engine) == 130 and engine.closed == 1
    assert "Traceback" not in capsys.readouterr().err


def test_nobody_reads_on() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
        "from xinfer import cli; from test_cli import FakeEngine\n"
        "sys.exit(cli.main(['--m', 'x', '--quiet', '--prompts', 'p'], FakeEngine({'p': 'word ' * 200000})))"
    )
    pipe = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pipe.stdout.read(4)
    pipe.stdout.close()
    err = pipe.stderr.read()
    pipe.stderr.close()
    assert (pipe.wait(), err) == (141, b"")


@pytest.mark.parametrize(
    "words, status, text",
    [
        (["--help"], 0, "XINFER_CACHE"),
        (["--version"], 0, f"xinfer {__version__}"),
        (["--m", "x", "--prompts", "p", "--nope"], 2, "unknown option --nope"),
        (["--m", "x", "--prompts", "p", "--top-p", "2"], 2, "top_p must be above 0 and at most 1, not 2.0"),
    ],
)
def test_light_start(words: list[str], status: int, text: str) -> None:
    code = (
        "import sys; from xinfer.cli import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status and text in done.stdout + done.stderr, done.stderr


def test_help_names_the_environment() -> None:
    text = cli.make_parser().format_help()
    for variable in env.TABLE:
        assert variable.name in text and variable.meaning in text


# -- loading


def test_loading_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--m", "x", "--prompts", "p"], FakeEngine())
    assert "loading" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.main(["--m", "x", "--prompts", "p"], FakeEngine())
    err = capsys.readouterr().err
    assert "loading" in err and "B/s" in err
    cli.main(["--m", "x", "--quiet", "--prompts", "p"], FakeEngine())
    assert capsys.readouterr().err == ""


# -- chatting


def test_chat_keeps_history(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    typed("Hi", "", "  How are you?", "/help", "/nope", "/reset", "Again", "/exit", "never read")
    engine = FakeEngine()
    assert cli.main(["--m", "x", "--i", "--system", "Be kind"], engine) == 0
    system, answer = "system:Be kind", "assistant:a reply"
    assert engine.asked == [
        (system, "user:Hi"),
        (system, "user:Hi", answer, "user:How are you?"),
        (system, "user:Again"),
    ]
    out, err = capsys.readouterr()
    assert out == "a reply\n" * 3
    assert err.count("/reset forgets") == 2 and "no command /nope: /reset forgets" in err
    assert engine.params == SamplingParams(max_tokens=cli.CHAT_MAX_TOKENS)


def test_ctrl_c_stops_the_reply_and_keeps_what_was_said(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("Tell me", "Go on", "/exit")
    engine = FakeEngine({("user:Tell me",): "once upon a time"})
    engine.on_word = lambda word: os.kill(os.getpid(), signal.SIGINT) if word == "upon" else None
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["--m", "x", "--quiet", "--i"], engine) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert engine.cancelled == 1 and capsys.readouterr().out == "once upon\na reply\n"
    assert engine.asked[1] == ("user:Tell me", "assistant:once upon", "user:Go on")


def test_second_ctrl_c_leaves(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    typed(KeyboardInterrupt(), "Hi", KeyboardInterrupt(), KeyboardInterrupt(), "never read")
    engine = FakeEngine()
    assert cli.main(["--m", "x", "--quiet", "--i"], engine) == 130
    assert engine.asked == [("user:Hi",)] and engine.closed == 1
    assert capsys.readouterr().err.count("Ctrl-C once more, or /exit, to leave") == 2
    typed("Hi", KeyboardInterrupt(), "never read")
    engine.on_word = lambda word: os.kill(os.getpid(), signal.SIGINT) if word == "a" else None
    assert cli.main(["--m", "x", "--quiet", "--i"], engine) == 130
    typed("Hi", "never read")
    engine.on_word = lambda word: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]
    assert cli.main(["--m", "x", "--quiet", "--i"], engine) == 130


def test_a_line_that_cannot_be_answered_is_forgotten(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("too long", "Hi")
    engine = FakeEngine()
    assert cli.main(["--m", "x", "--quiet", "--i"], engine) == 0
    assert "xinfer: error: the prompt is too long (/reset starts anew)" in capsys.readouterr().err
    assert engine.asked == [("user:Hi",)]
