"""What a request changes about the choice among visible tokens: penalties, biases, min_p, and a grammar.

The adjusted logits decide which token is taken. They leave p(operator) as it is at every decision: whatever happens to
the visible tokens, their probabilities together stay what they were, so that no penalty and no grammar makes a model
think more or less often. Recorded log-probabilities are those before all of it, as they are before top-k and top-p.

Order and definitions are vLLM's: biases, the grammar, the repetition penalty (of prompt and answer), the frequency and
the presence penalty (of the answer), then, at the request's temperature, min_p; top-k and top-p follow.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.engine.checks import check_real, check_whole
from tyler.engine.sampling import NEVER, Sampling, choose, logprobs_of

Found = TypeVar("Found")
BITS = 32
"""Tokens in one number of a grammar's mask."""


class GrammarError(Exception):
    """A grammar grew too complex in the middle of an answer."""


class Matcher(Protocol):
    """Where one answer stands in its grammar. Both methods may raise GrammarError."""

    def accept(self, token: int) -> None:
        """Go on by a visible token that the mask allowed."""

    def mask(self) -> Int[Tensor, "words"]:
        """The tokens that may come next, in int32: token i is bit i % 32 of word i // 32. Never none of them."""


class Grammar(Protocol):
    """A compiled grammar (`tyler.serving.grammar`), which many answers share."""

    def start(self) -> Matcher:
        """The beginning of an answer."""


@dataclass(frozen=True)
class LogitSettings:
    """What one request changes about the logits of visible tokens. The default changes nothing.

    `min_p` leaves out tokens less probable than that share of the likeliest one. `presence_penalty` is taken off the
    logit of every token of the answer, `frequency_penalty` once for each time it stands there; `repetition_penalty`
    divides the positive and multiplies the negative logits of tokens of the prompt or the answer. `logit_bias` adds to
    tokens' logits. `ignore_eos` never ends the answer by an end-of-text token: none is taken. A `grammar` allows the
    tokens which continue a text that it holds, and the end only where the text is complete. Raises ValueError for
    anything that is not allowed.
    """

    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("min_p", 0, 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2)):
            _check_range(name, getattr(self, name), low, high)
        check_real("repetition_penalty", self.repetition_penalty, "it must be above 0; 1 means no penalty")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}; it must be above 0; 1 means no penalty")
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        biases = {token: bias for token, bias in pairs}
        for token, bias in biases.items():
            check_whole("a token of logit_bias", token, 0, "it must be a token id")
            _check_range(f"the logit_bias of token {token}", bias, -100, 100)
        object.__setattr__(self, "logit_bias", tuple(sorted(biases.items())))
        if self.ignore_eos and self.grammar is not None:
            raise ValueError("ignore_eos=True and a grammar exclude each other: an answer ends where its grammar does")

    @property
    def plain(self) -> bool:
        """Whether they change nothing."""
        return self == LogitSettings()


def _check_range(name: str, value: object, low: float, high: float) -> None:
    meaning = f"it must be from {low} to {high}"
    check_real(name, value, meaning)
    if not low <= value <= high:  # type: ignore[operator]
        raise ValueError(f"{name}={value!r}; {meaning}")


class LogitState:
    """What one answer's settings come to at its next decision. `tokens` are its visible tokens so far, kept live.

    Raises ValueError for a bias of a token that the model does not have.
    """

    def __init__(
        self,
        settings: LogitSettings,
        prompt_ids: Sequence[int],
        tokens: Sequence[int],
        *,
        eos_ids: Collection[int],
        vocab_size: int,
        temperature: float,
    ) -> None:
        self.tokens, self.temperature, self.vocab_size = tokens, temperature, vocab_size
        self.settings = settings
        biases = dict(settings.logit_bias)
        if beyond := [token for token in biases if token >= vocab_size]:
            raise ValueError(f"logit_bias names token {beyond[0]}; the model's are from 0 to {vocab_size - 1}")
        biases |= dict.fromkeys(eos_ids, NEVER) if settings.ignore_eos else {}
        self.biased, self.biases = array("q", biases), array("d", biases.values())
        self.repeated = array("q", set(prompt_ids) if settings.repetition_penalty != 1 else ())
        self.used, self.penalties = array("q"), array("d")
        self.matcher = None if settings.grammar is None else settings.grammar.start()
        self._penalizes = bool(settings.presence_penalty or settings.frequency_penalty)
        self._places: dict[int, int] = {}  # of each token in `used`
        self._repeated = set(self.repeated)
        self._seen = 0
        self.error: str | None = None
        """Why the answer cannot go on."""

    def mask(self) -> Int[Tensor, "words"] | None:
        """What the grammar allows next; None without one, and where it has failed."""
        return self._asked(lambda matcher: matcher.mask())

    def _asked(self, ask: Callable[[Matcher], Found]) -> Found | None:
        """What the grammar says to something; None without one, and once it has failed."""
        try:
            return None if self.matcher is None or self.error is not None else ask(self.matcher)
        except GrammarError as error:
            self.error = str(error)
            return None

    def update(self) -> None:
        """Take in the tokens that have come since."""
        for token in self.tokens[self._seen :]:
            self._asked(lambda matcher, token=token: matcher.accept(token))  # type: ignore[misc]
            if self.settings.repetition_penalty != 1 and token not in self._repeated:
                self._repeated.add(token)
                self.repeated.append(token)
            if self._penalizes:
                self._penalize(token)
        self._seen = len(self.tokens)

    def _penalize(self, token: int) -> None:
        if token not in self._places:
            self._places[token] = len(self.used)
            self.used.append(token)
            self.penalties.append(self.settings.presence_penalty)
        self.penalties[self._places[token]] += self.settings.frequency_penalty


def adjusted(
    logits: Float[Tensor, "rows actions"], states: Sequence[LogitState | None]
) -> Float[Tensor, "rows actions"]:
    """Logits to choose by, given those at each row's temperature; `logits` itself where no row has a state.

    The columns are V, or V' with the operators last. Rows without a state are unchanged to the last bit.
    """
    rows = [row for row, state in enumerate(states) if state is not None]
    active = [state for state in states if state is not None]
    if not active:
        return logits
    for state in active:
        state.update()
    own = logits[rows]
    tokens = own[:, : active[0].vocab_size]
    before = tokens.logsumexp(dim=-1, keepdim=True)
    scales = torch.tensor([[state.temperature] for state in active], dtype=tokens.dtype, device=tokens.device)
    _add(tokens, [state.biased for state in active], [state.biases for state in active], scales)
    _mask(tokens, active)
    _penalize_repetition(tokens, active)
    _add(tokens, [state.used for state in active], [state.penalties for state in active], -scales)
    _leave_out(tokens, [state.settings.min_p for state in active])
    if tokens.shape != own.shape:
        tokens += before - tokens.logsumexp(dim=-1, keepdim=True)
    found = logits.clone()
    found[rows] = own
    return found


def drawn(
    logits: Float[Tensor, "rows actions"],
    states: Sequence[LogitState | None],
    samplings: list[Sampling],
    uniforms: list[float],
    taken: Sequence[int | None],
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"]]:
    """a_t and log p(a_t | x_t) of each row, given logits at its temperature; an action that is `taken` is not drawn.

    What a request adjusts decides which is drawn; log-probabilities are of the policy itself.
    """
    chosen_by = adjusted(logits, states)
    actions, logprobs = choose(chosen_by, samplings, uniforms)
    if any(one is not None for one in taken):
        chosen = zip(actions.tolist(), taken, strict=True)
        actions = torch.tensor([action if one is None else one for action, one in chosen], device=logits.device)
    elif chosen_by is logits:
        return actions, logprobs
    return actions, logprobs_of(logits, actions)


def _places(ids: Sequence[array[int]], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Row and column of every id of every row; None without ids."""
    if not any(ids):
        return None
    counts = torch.tensor([len(own) for own in ids])
    rows = torch.repeat_interleave(torch.arange(len(ids)), counts)
    return rows.to(device), _joined(ids, torch.int64).to(device)


def _joined(arrays: Sequence[array[Any]], dtype: torch.dtype) -> Tensor:
    """One tensor of all their numbers."""
    return torch.frombuffer(bytearray(b"".join(arrays)), dtype=dtype)


def _add(
    tokens: Float[Tensor, "rows vocab"],
    ids: Sequence[array[int]],
    values: Sequence[array[float]],
    scales: Float[Tensor, "rows 1"],
) -> None:
    """Add each row's values, over its scale, to the logits of its ids."""
    if (places := _places(ids, tokens.device)) is None:
        return
    added = _joined(values, torch.float64).to(tokens.dtype).to(tokens.device)
    tokens[places] += added / scales[places[0], 0]


def _mask(tokens: Float[Tensor, "rows vocab"], states: Sequence[LogitState]) -> None:
    """Leave what the rows' grammars allow."""
    masks = {row: mask for row, state in enumerate(states) if (mask := state.mask()) is not None}
    if masks:
        rows, words = list(masks), torch.stack(list(masks.values()))
        tokens[rows] = tokens[rows].masked_fill(~unpacked(words.to(tokens.device), tokens.shape[-1]), NEVER)


def unpacked(words: Int[Tensor, "rows words"], vocab_size: int) -> Bool[Tensor, "rows vocab"]:
    """A mask's bits, one a token; tokens beyond it are not allowed."""
    bits = (words[:, :, None] >> torch.arange(BITS, device=words.device, dtype=words.dtype)) & 1
    allowed = bits.flatten(1).bool()[:, :vocab_size]
    return torch.nn.functional.pad(allowed, (0, vocab_size - allowed.shape[-1]))


def _penalize_repetition(tokens: Float[Tensor, "rows vocab"], states: Sequence[LogitState]) -> None:
    if (places := _places([state.repeated for state in states], tokens.device)) is None:
        return
    penalties = torch.tensor([state.settings.repetition_penalty for state in states], device=tokens.device)[places[0]]
    found = tokens[places]
    tokens[places] = torch.where(found > 0, found / penalties, found * penalties)


def _leave_out(tokens: Float[Tensor, "rows vocab"], min_p: Sequence[float]) -> None:
    """Leave out what is less probable than each row's share of its likeliest token."""
    if any(min_p):
        share = torch.tensor(min_p, dtype=tokens.dtype, device=tokens.device)[:, None]
        tokens.masked_fill_(tokens < tokens.amax(dim=-1, keepdim=True) + share.log(), NEVER)
