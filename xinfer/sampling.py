"""SamplingParams: how the next token of one request is chosen, and when the request ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xinfer.errors import RequestError

MAX_BIASES = 300
MAX_STOPS = 16
LOWEST_TEMPERATURE = 1e-6  # below it logits/temperature leaves the range of f32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Names and meanings of the OpenAI and vLLM interfaces; wrong values raise RequestError.

    max_tokens          most tokens to generate; None goes on until the model's own length
    min_tokens          stop ids and stop strings do not end the reply before that many
    temperature         0, the default, is greedy: the likeliest token, ties to the lowest id
    top_k, top_p        the k likeliest (0 is off); the likeliest that together reach p, in (0, 1]
    min_p               in [0, 1]: least probability, as a share of the likeliest token's
    repetition_penalty  above 0, 1 is off: divides positive and multiplies negative logits of tokens that were
                        seen in the prompt or the reply
    frequency_penalty, presence_penalty   in [-2, 2]: subtracted per occurrence, and once, in the reply only
    seed                makes the draws of this request repeatable; None takes one from the engine's
    stop                one string or several; not part of the text returned
    stop_token_ids      end the reply like the model's own end tokens
    ignore_eos          the model's own end tokens do not end it
    logit_bias          token id -> number in [-100, 100] added to its logit; at most 300
    n                   1 in this version
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        _number("temperature", self.temperature, 0.0, math.inf)
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise RequestError(
                f"temperature {self.temperature!r} is too close to 0: use 0 for greedy, "
                f"or at least {LOWEST_TEMPERATURE}"
            )
        _whole("top_k", self.top_k, 0, (1 << 31) - 1)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos must be true or false, not {self.ignore_eos!r}")
        _whole("n", self.n, 1)
        if self.n != 1:
            raise RequestError(
                f"n must be 1, not {self.n}: send the prompt {self.n} times for {self.n} replies"
            )
        self._check_stops()
        self._check_bias()

    def _check_stops(self) -> None:
        if not isinstance(self.stop, str | list | tuple):
            raise RequestError(f"stop must be a string or a list of strings, not {self.stop!r}")
        if len(self.stops) > MAX_STOPS:
            raise RequestError(f"stop has {len(self.stops)} strings, at most {MAX_STOPS} are accepted")
        for text in self.stops:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop must hold non-empty strings, not {text!r}")
        if not isinstance(self.stop_token_ids, list | tuple | set | frozenset):
            raise RequestError(f"stop_token_ids must be a list of token ids, not {self.stop_token_ids!r}")
        for token in self.stop_token_ids:
            _whole("stop_token_ids: a token id", token, 0)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        if len(self.logit_bias) > MAX_BIASES:
            raise RequestError(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_BIASES} are accepted"
            )
        for token, bias in self.logit_bias.items():
            _whole("logit_bias: a token id", token, 0)
            _number(f"logit_bias of token {token}", bias, -100.0, 100.0)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, also when one was given as plain text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalized(self) -> bool:
        """Whether logits change before the choice: the counts of tokens seen, or a bias, are needed."""
        neutral = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) == (1, 0, 0)
        return not neutral or bool(self.logit_bias)


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, not {value!r}")
    if value < low:
        raise RequestError(f"{name} must be at least {low}, not {value}")
    if high is not None and value > high:
        raise RequestError(f"{name} must be at most {high}, not {value}")


def _number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, not {value!r}")
    inside = (low < value if open_low else low <= value) and value <= high
    if not math.isfinite(value) or not inside:
        least = f"above {low:g}" if open_low else f"at least {low:g}"
        most = f" and at most {high:g}" if math.isfinite(high) else ""
        raise RequestError(f"{name} must be {least}{most}, not {value!r}")
