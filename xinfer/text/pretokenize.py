"""How families of BPE vocabularies cut text into words before merging, by the name that a GGUF file gives.

The patterns are those of the families' own tokenizer.json files, in the regex dialect of the `tokenizers`
library (Oniguruma). Several are applied one after the other, each to the pieces that the one before left.
"""

import logging
from dataclasses import dataclass

from xinfer.errors import UnsupportedError

log = logging.getLogger(__name__)

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _SUFFIX + rf"|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _TAIL
_QWEN2 = _SUFFIX + rf"|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _TAIL
_QWEN35 = _SUFFIX + rf"|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*" + _TAIL
_SEED = _SUFFIX + rf"|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+" + _TAIL
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_TEKKEN = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _TAIL
)
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_THREE_DIGITS = "[0-9][0-9][0-9]"

# Cased letters as DeepSeek-LLM lists them (an old Unicode, without most of Georgian), as code point ranges.
_CASED = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""


def _ranges(listed: str) -> str:
    """The inside of a character class from hexadecimal ranges: "41-5A B5" gives "A-Zµ"."""
    return "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in listed.split())


_CJK = _ranges("4E00-9FA5 800-4E00 AC00-D7FF")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_ranges(_CASED)}]+",
    rf"\s?[!-/:-~{_ranges('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
    r"\s+$",
    f"[{_CJK}]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_CJK}]+", r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"[{_ranges('4E00-9FA5 3040-309F 30A0-30FF')}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*""" + _TAIL,
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules of a family.

    patterns       applied in order; every match and every gap becomes a piece
    ignore_merges  a piece that is itself a token is that token, whatever the merges say
    add_bos        a prompt begins with the bos token unless the file says otherwise
    nfc            the family normalises text to NFC first
    byte_level     bytes are written in the 256 letters of GPT-2; else only spaces change, to U+2581
    """

    patterns: tuple[str, ...] = ()
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False
    byte_level: bool = True


_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS))

_FAMILIES: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v2-code jina-v1-en roberta-bpe gigachat a.x-4.0 "
    "mellum modern-bert exaone4 jais trillion granite-docling": PreTokenizer((_GPT2,)),
    "mpt olmo": PreTokenizer((_GPT2,), nfc=True),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "glm4 chatglm-bpe dbrx smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez": PreTokenizer((_QWEN2,), nfc=True),
    "stablelm2 hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer(_DEEPSEEK_V3),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "seed-coder": PreTokenizer((_SEED,)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_BAILING,)),
    "bloom poro-chat gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "gemma4": PreTokenizer(add_bos=True, byte_level=False),
}
PRE_TOKENIZERS = {name: family for names, family in _FAMILIES.items() for name in names.split()}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The rules of a family; a file without a name gets the default ones and a warning, as in llama.cpp.

    Raises UnsupportedError for a name nobody taught us: words cut wrongly would only look like a bad model.
    """
    if not name:
        log.warning(
            "the file has no tokenizer.ggml.pre, words are cut by the default rules: convert it again"
        )
        return _DEFAULT
    if name not in PRE_TOKENIZERS:
        known = " ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"tokenizer.ggml.pre is {name!r}, and only these are known: {known}")
    return PRE_TOKENIZERS[name]
