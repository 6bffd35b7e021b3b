"""What a request changes about the choice among visible tokens: penalties, biases, min_p, and a grammar.

The adjusted logits decide which token is taken. They leave p(operator) as it is at every decision: whatever happens to
the visible tokens, their probabilities together stay what they were, so that no penalty and no grammar makes a model
think more or less often. Recorded log-probabilities are those before all of it, as they are before top-k and top-p.

Order and definitions are vLLM's: biases, the grammar, the repetition penalty (of prompt and answer), the frequency and
the presence penalty (of the answer), then, at the request's temperature, min_p; top-k and top-p follow.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.engine.checks import ABOVE_ZERO, FINITE, check_real, check_whole
from tyler.engine.sampling import NEVER, Sampling, choose, logprobs_of
from tyler.modeling.backbone import Backbone


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
            check_real(name, getattr(self, name), f"it must be from {low} to {high}", low, high)
        allowed = "it must be above 0; 1 means no penalty"
        check_real("repetition_penalty", self.repetition_penalty, allowed, ABOVE_ZERO, FINITE)
        biases: dict[int, float] = dict(self.logit_bias)
        for token, bias in biases.items():
            check_whole("a token of logit_bias", token, 0, "it must be a token id")
            check_real(f"the logit_bias of token {token}", bias, "it must be from -100 to 100", -100, 100)
        object.__setattr__(self, "logit_bias", tuple(sorted(biases.items())))
        if self.ignore_eos and self.grammar is not None:
            raise ValueError("ignore_eos=True and a grammar exclude each other: an answer ends where its grammar does")

    @property
    def plain(self) -> bool:
        """Whether they change nothing."""
        return self == LogitSettings()


class LogitState:
    """What one answer's settings come to at its next decision. `tokens` are its visible tokens so far, kept live.

    Raises ValueError for a bias of a token that the model does not have.
    """

    def __init__(
        self,
        settings: LogitSettings,
        prompt_ids: Sequence[int],
        tokens: Sequence[int],
        backbone: Backbone,
        temperature: float,
    ) -> None:
        self.settings, self.tokens, self.temperature = settings, tokens, temperature
        self.vocab_size = backbone.vocab_size
        self._biases = dict(settings.logit_bias)
        if beyond := [token for token in self._biases if token >= self.vocab_size]:
            raise ValueError(f"logit_bias names token {beyond[0]}; the model's are from 0 to {self.vocab_size - 1}")
        self._biases |= dict.fromkeys(backbone.eos_ids, NEVER) if settings.ignore_eos else {}
        self._prompt = set(prompt_ids)
        self._counts = Counter[int]()  # of the tokens that were taken in
        self._matcher = None if settings.grammar is None else settings.grammar.start()
        self.error: str | None = None  # why the answer cannot go on

    def adjust(self, logits: Float[Tensor, " vocab"]) -> None:
        """Change the logits over V, at the request's temperature, in place, after the tokens that have come since."""
        settings, new = self.settings, self.tokens[self._counts.total() :]
        self._counts.update(new)
        self._add(logits, self._biases)
        self._follow_grammar(logits, new)
        if settings.repetition_penalty != 1:
            places = torch.tensor(list(self._prompt | self._counts.keys()), device=logits.device)
            found, penalty = logits[places], settings.repetition_penalty
            logits[places] = torch.where(found > 0, found / penalty, found * penalty)
        if settings.presence_penalty or settings.frequency_penalty:
            once, each = -settings.presence_penalty, -settings.frequency_penalty
            self._add(logits, {token: once + each * count for token, count in self._counts.items()})
        if settings.min_p:
            logits.masked_fill_(logits < logits.max() + math.log(settings.min_p), NEVER)

    def _add(self, logits: Float[Tensor, " vocab"], values: Mapping[int, float]) -> None:
        """Add values to the logits of tokens as they are at temperature 1."""
        if values:
            added = torch.tensor(list(values.values()), dtype=logits.dtype, device=logits.device)
            logits[list(values)] += added / self.temperature

    def _follow_grammar(self, logits: Float[Tensor, " vocab"], new: Sequence[int]) -> None:
        """Leave what the grammar allows after `new` tokens; once it has failed, everything."""
        if self._matcher is None or self.error is not None:
            return
        try:
            for token in new:
                self._matcher.accept(token)
            allowed = unpacked(self._matcher.mask().to(logits.device), len(logits))
        except GrammarError as error:
            self.error = str(error)
        else:
            logits.masked_fill_(~allowed, NEVER)


def unpacked(words: Int[Tensor, " words"], vocab_size: int) -> Bool[Tensor, " vocab"]:
    """A mask's bits, one a token; tokens beyond it are not allowed."""
    places = torch.arange(torch.iinfo(words.dtype).bits, device=words.device, dtype=words.dtype)
    bits = (words[:, None] >> places) & 1
    allowed = bits.flatten().bool()[:vocab_size]
    return torch.nn.functional.pad(allowed, (0, vocab_size - len(allowed)))


def adjusted(
    logits: Float[Tensor, "rows actions"], states: Sequence[LogitState | None]
) -> Float[Tensor, "rows actions"]:
    """Logits to choose by, given those at each row's temperature; `logits` itself where no row has a state.

    The columns are V, or V' with the operators last. Rows without a state are unchanged to the last bit.
    """
    if not any(states):
        return logits
    found = logits.clone()
    for row, state in enumerate(states):
        if state is not None:
            tokens = found[row, : state.vocab_size]
            before = tokens.logsumexp(dim=-1)
            state.adjust(tokens)
            if len(tokens) < found.shape[-1]:
                tokens += before - tokens.logsumexp(dim=-1)
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
