"""Chat templates against prompts of llama.cpp and against the formats that the families publish."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from xinfer.errors import CheckpointError, RequestError, UnsupportedError
from xinfer.text.chat import ChatTemplate

TALK = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi <there> & 茶"},
    {"role": "user", "content": "Who are you?"},
]
SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "It's <b>°C</b>", "parameters": {"type": "object"}},
}
PUBLISHED = {
    "Qwen-Qwen2.5-7B-Instruct": (
        [SYSTEM, *TALK],
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi <there> & 茶<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    "meta-llama-Llama-3.1-8B-Instruct": (
        [SYSTEM, *TALK],
        "<BOS><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi <there> & 茶<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "google-gemma-2-2b-it": (
        TALK,
        "<BOS><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\nHi <there> & 茶<end_of_turn>\n"
        "<start_of_turn>user\nWho are you?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "microsoft-Phi-3.5-mini-instruct": (
        [SYSTEM, *TALK],
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi <there> & 茶<|end|>\n"
        "<|user|>\nWho are you?<|end|>\n<|assistant|>\n",
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        [SYSTEM, *TALK],
        "<BOS>Be brief.<｜User｜>Hello<｜Assistant｜>Hi <there> & 茶<｜end▁of▁sentence｜>"
        "<｜User｜>Who are you?<｜Assistant｜><think>\n",
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        [SYSTEM, *TALK],
        "<BOS>[INST]Hello[/INST]Hi <there> & 茶<EOS>[INST]Be brief.\n\nWho are you?[/INST]",
    ),
}


def published(shared: Path, name: str) -> ChatTemplate:
    source = (shared / "goldens" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, "<BOS>", "<EOS>")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_formats(shared: Path, name: str) -> None:
    messages, expected = PUBLISHED[name]
    assert published(shared, name).render(messages) == expected


def test_prompt_of_llama_cpp(shared: Path) -> None:
    file = shared / "goldens" / "llama_cpp" / "oracle_SmolLM2-135M-Instruct.Q4_1.json"
    expected = json.loads(file.read_text("utf-8"))
    template = ChatTemplate(expected["chat_template"])
    for chat in expected["native"]["chat"]:
        assert template.render(chat["messages"]) == chat["rendered"]


def test_tools_are_written_as_plain_json(shared: Path) -> None:
    shown = published(shared, "Qwen-Qwen2.5-7B-Instruct").render(TALK, tools=[WEATHER])
    assert f"<tools>\n{json.dumps(WEATHER, ensure_ascii=False)}\n</tools>" in shown
    shown = published(shared, "meta-llama-Llama-3.1-8B-Instruct").render(TALK, tools=[WEATHER])
    assert json.dumps(WEATHER, ensure_ascii=False, indent=4) in shown


def test_published_templates_refuse(shared: Path) -> None:
    gemma = published(shared, "google-gemma-2-2b-it")
    with pytest.raises(RequestError, match=r"refuses these messages: System role not supported$"):
        gemma.render([SYSTEM, *TALK])
    with pytest.raises(RequestError, match="roles must alternate"):
        gemma.render(TALK[1:])
    with pytest.raises(RequestError, match="messages is empty"):
        gemma.render([])


def render(source: str, **values: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(TALK, **values)


def test_what_a_template_may_use() -> None:
    assert render("{{ bos_token }}{{ eos_token }}{{ pad_token }}") == "<s></s>"
    assert (
        render("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}") == "True True True"
    )
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    loop = "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }},{% endfor %}"
    assert render(loop) == "user,assistant,"
    assert (
        render("{% for m in messages %}{% if m.role != 'user' %}{% continue %}{% endif %}x{% endfor %}")
        == "xx"
    )
    assert render("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"  # trim_blocks and lstrip_blocks
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}") == "2"
    assert render("{{ messages[1].content }}") == "Hi <there> & 茶"  # nothing is escaped


def test_tojson() -> None:
    value = {"b": "<é> & 'x'", "a": [1, 2.5, None, True]}
    assert render("{{ v | tojson }}", v=value) == '{"b": "<é> & \'x\'", "a": [1, 2.5, null, true]}'
    assert render("{{ v | tojson(indent=2) }}", v=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'
    assert (
        render("{{ v | tojson(separators=(',', ':'), sort_keys=true) }}", v={"b": 1, "a": 2})
        == '{"a":2,"b":1}'
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ tojson.__init__ }}{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(UnsupportedError, match="does what no template may"):
        render(source)
    assert TALK[0] == {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    "source, says",
    [
        ("{{ raise_exception('two\nlines') }}", "two lines"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ nothing.there }}", "'nothing' is undefined"),
        ("{{ nothing | tojson }}", "not JSON serializable"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{% include 'file' %}", "loader"),
    ],
)
def test_errors_are_one_line(source: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        render(source)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("the model's chat template refuses")


def test_broken_and_missing_templates() -> None:
    with pytest.raises(UnsupportedError, match="broken in line 2"):
        render("a\n{% if %}")
    for source in (None, {}):
        template = ChatTemplate(source)
        assert not template
        with pytest.raises(UnsupportedError, match="this model has no chat template: send a plain prompt"):
            template.render(TALK)
    assert ChatTemplate("x")


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    talk = [{"role": "user", "content": parts}]
    assert ChatTemplate("{{ messages[0].content }}").render(talk) == "one\ntwo"
    reader = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}"
    assert ChatTemplate(reader).render(talk) == "[one][two]"
    with pytest.raises(RequestError, match="takes text only"):
        ChatTemplate("{{ messages[0].content }}").render(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        )


def test_named_templates() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].function.name }}"})
    assert template.render(TALK) == "plain" and template.render(TALK, tools=[WEATHER]) == "weather"
    assert ChatTemplate({"default": "plain"}).render(TALK, tools=[WEATHER]) == "plain"
    with pytest.raises(RequestError, match="no 'default' chat template, only rag"):
        ChatTemplate({"rag": "x"}).render(TALK)


def test_templates_of_gguf_files() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    template = ChatTemplate.from_gguf(metadata, {"bos_token": "<s>"})
    assert template.render(TALK) == "<s>plain" and template.render(TALK, tools=[WEATHER]) == "tools"
    assert not ChatTemplate.from_gguf({"general.name": "base"}, {})


def test_templates_of_folders(tmp_path: Path) -> None:
    def found(**names: str) -> ChatTemplate:
        return ChatTemplate.from_hf_folder(tmp_path, names)

    assert not found()
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "one {{ eos_token }}"}')
    assert found(eos_token="</s>").render(TALK) == "one </s>"
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert found().render(TALK) == "two" and found().render(TALK, tools=[WEATHER]) == "tools"
    config.write_text('{"chat_template": 5}')
    with pytest.raises(CheckpointError, match="neither a text"):
        found()
    (tmp_path / "chat_template.json").write_text('{"chat_template": "three"}')
    assert found().render(TALK) == "three"
    (tmp_path / "chat_template.jinja").write_text("four 茶\n", encoding="utf-8")
    assert found().render(TALK) == "four 茶"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    assert found().render(TALK) == "four 茶" and found().render(TALK, tools=[WEATHER]) == "more"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        found()
