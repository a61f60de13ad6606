"""Which tokens end a reply: what the files say, and the end tokens that everybody knows by name.

Files forget: many name only one of two end tokens. The names are those that llama.cpp ends on too.
"""

from collections.abc import Iterable, Mapping

END_TOKENS = (
    "<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> <|call|> <|calls|> <|flush|> <end_of_turn> "
    "<|endoftext|> <|end_of_text|> </s> <eos> <turn|> <|tool_response> <EOT> _<EOT> [EOT] [EOS] "
    "<end_of_utterance> <｜end▁of▁sentence｜> [e~[ <|fim_pad|> <|fim_repo|> <|repo_name|> <|file_sep|>"
).split()


def stop_ids(special: Mapping[str, int], *configs: Mapping[str, object] | None) -> tuple[int, ...]:
    """Ids that end a reply, ascending: `eos_token_id` of each config (config.json, its text_config,
    generation_config.json), and the well-known names among the special tokens {name: id} of the vocabulary.

    Two families use a well-known name for something else: with harmony's <|call|> or solar's <|calls|> beside
    <|return|> or <|flush|>, <|end|> only closes a message; with gemma4's <|tool_response>, </s> is text.
    """
    found = {special[name] for name in END_TOKENS if name in special}
    if special.keys() & {"<|call|>", "<|calls|>"} and special.keys() & {"<|return|>", "<|flush|>"}:
        found.discard(special.get("<|end|>"))
    if "<|tool_response>" in special:
        found.discard(special.get("</s>"))
    for config in configs:
        if config:
            found.update(token_ids(config.get("eos_token_id")))
            inner = config.get("text_config")
            if isinstance(inner, Mapping):
                found.update(token_ids(inner.get("eos_token_id")))
    return tuple(sorted(found))


def token_ids(value: object) -> list[int]:
    """The ids in an `eos_token_id` entry, which is a number, a list of numbers, or absent."""
    values: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
