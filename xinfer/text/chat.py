"""Chat templates: the Jinja program of a model that turns messages into its prompt, run in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

from jinja2 import Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from xinfer.errors import CheckpointError, RequestError, UnsupportedError
from xinfer.text.hf_folder import read_json

DEFAULT, TOOL_USE = "default", "tool_use"
GGUF_KEY = "tokenizer.chat_template"
# What a template that meets unexpected messages may raise, beside its own raise_exception().
RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class ChatTemplate:
    """source: a template, several by name ("default", "tool_use"), or None for a model without one.

    bos, eos: the texts of those tokens; names: those of other roles, as Tokenizer.special_names has them.
    Compiled at the first render, so that a broken template does not keep a model from completing plain text.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        bos: str = "",
        eos: str = "",
        *,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.sources = {DEFAULT: source} if isinstance(source, str) else dict(source or {})
        self._scope = {"bos_token": bos, "eos_token": eos, **(names or {})}
        self._compiled: dict[str, Template] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], names: Mapping[str, str]) -> "ChatTemplate":
        """From tokenizer.chat_template, and tokenizer.chat_template.NAME for the names in the metadata."""
        sources = {
            key.removeprefix(GGUF_KEY).removeprefix(".") or DEFAULT: str(value)
            for key, value in metadata.items()
            if key == GGUF_KEY or key.startswith(GGUF_KEY + ".")
        }
        return cls(sources, names=names)

    @classmethod
    def from_hf_folder(cls, path: str | Path, names: Mapping[str, str]) -> "ChatTemplate":
        """From chat_template.jinja, chat_template.json or tokenizer_config.json, the first that has one."""
        folder = Path(path)
        files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
        if (folder / "chat_template.jinja").is_file():
            files[DEFAULT] = folder / "chat_template.jinja"
        if files:
            return cls({name: _text(file) for name, file in files.items()}, names=names)
        for name in ("chat_template.json", "tokenizer_config.json"):
            value = read_json(folder / name).get("chat_template")
            if value:
                return cls(_named(value, folder / name), names=names)
        return cls(None, names=names)

    def __bool__(self) -> bool:
        return bool(self.sources)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt. kwargs go to the template (enable_thinking=False, documents=[...], ...).

        RequestError when the template refuses the messages; UnsupportedError when there is none, or it is
        broken, or it reaches for what the sandbox forbids.
        """
        if not messages:
            raise RequestError("messages is empty: a chat needs at least one message")
        template = self._template(TOOL_USE if tools and TOOL_USE in self.sources else DEFAULT)
        if any(isinstance(message.get("content"), list | tuple) for message in messages):
            if not self._reads_parts(template):
                messages = [_joined(message) for message in messages]
        scope = {"tools": list(tools) if tools else None, "documents": None, **self._scope, **kwargs}
        return self._run(
            template, {**scope, "messages": messages, "add_generation_prompt": add_generation_prompt}
        )

    def _run(self, template: Template, scope: Mapping[str, object]) -> str:
        try:
            return template.render(scope)
        except SecurityError as error:
            raise UnsupportedError(
                f"the model's chat template does what no template may: {_one_line(error)}"
            ) from error
        except RENDER_ERRORS as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {_one_line(error)}"
            ) from error

    def _reads_parts(self, template: Template) -> bool:
        """Whether a template looks into content that is a list of parts: asked by showing it one."""
        part = {"type": "text", "text": "<probe>"}
        scope = {
            **self._scope,
            "messages": [{"role": "user", "content": [part]}],
            "add_generation_prompt": True,
        }
        try:
            shown = self._run(template, scope)
        except (RequestError, UnsupportedError):
            return False
        return "<probe>" in shown and "'text'" not in shown

    def _template(self, name: str) -> Template:
        if name not in self.sources:
            if not self.sources:
                raise UnsupportedError(
                    "this model has no chat template: send a plain prompt instead of messages, "
                    "or use an instruction-tuned version of the model"
                )
            known = ", ".join(sorted(self.sources))
            raise RequestError(f"this model has no {name!r} chat template, only {known}: pass one of them")
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self.sources[name])
            except (TemplateSyntaxError, RecursionError) as error:
                line = f" in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
                raise UnsupportedError(
                    f"the model's chat template is broken{line}: {_one_line(error)}"
                ) from error
        return self._compiled[name]

    @cached_property
    def _environment(self) -> "Sandbox":
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, strict: a forbidden attribute is an error at once, not an empty text."""

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__}")


class Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks replies for training; here its body is just text."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: unlike Jinja's own filter, letters and < > & ' stay as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8 text ({error}): fetch it again") from error


def _named(value: object, file: Path) -> str | dict[str, str]:
    """The templates of a JSON entry: one text, a list of {"name", "template"}, or an object by name."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, Mapping)}
    if isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item):
        return dict(value)
    raise CheckpointError(f"chat_template in {file} is neither a text nor texts with names")


def _joined(message: Mapping[str, object]) -> Mapping[str, object]:
    """The message with a content of text parts only made one text, a line break between parts."""
    parts = message.get("content")
    if not isinstance(parts, list | tuple):
        return message
    texts = [
        part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type", "text") == "text"
    ]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise RequestError("this model's chat template takes text only: leave out the other parts of content")
    return {**message, "content": "\n".join(texts)}
