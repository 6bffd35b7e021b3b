"""SwiReasoning (Shi et al., 2025), without training: a row switches between soft and explicit steps by its entropy.

At every step t of a row p = softmax(logits) over V at temperature 1, without filters, H is its entropy in nats, and y
the token that the request's sampling takes. `locked` becomes true once that y is `</think>`, whatever is forced below.

Mode. Step 0 is soft and its H is H_ref. Later a soft row turns normal when H < H_ref, at once; a normal one turns soft
when H > H_ref, unless it is locked or has been normal for fewer than `window` steps. At a switch H_ref = H.

What is read. A step is explicit when the mode is normal, or the row is locked, or y is a mathematical symbol, a digit
or a single letter: then E[y], otherwise s = p @ E. Signals are mixed in: 0.9 s + 0.1 E["\\n"] (a backslash and an n) at
step 0; a s + (1 - a) E[<think>] where a row turns soft, with a = a0 + (1 - a0) t / T_max; b s + (1 - b) E[</think>]
where it turns normal although that step is explicit, with b = b0 + (1 - b0) t / T_max; T_max is the request's
`max_new_tokens`.

Switch control (`max_switches` C, off by default) looks at the steps that turn normal, counting them: from C to 2C
`</think>` is queued, beyond 2C an opening of the answer, and from that step on `answer_tokens` tokens are left. Queued
tokens replace y from the next step on. y is recorded on soft steps too.

# Deviation: a tokenizer without a token (`<think>`, `</think>`, a literal backslash-n) goes without mixing it in, and
switch control then queues only the opening of the answer; the release fails.
"""

import string
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tyler.config.sections import Count, NonNegative, PositiveShare
from tyler.engine.routing import Never
from tyler.engine.sampling import Choice, Sampling
from tyler.model import Tyler
from tyler.modeling.architectures import FAMILIES
from tyler.modeling.backbone import Backbone
from tyler.reasoners.cot import backbone_alone
from tyler.reasoners.method import LengthSetting, Method
from tyler.reasoners.tyler import TylerReasoner

SAMPLING = Sampling(temperature=0.6, top_k=20, top_p=0.95)
"""The release's, where it does not decode greedily; give it a seed with `dataclasses.replace`."""

BEGIN, END, LINE_BREAK = "<think>", "</think>", "\\n"
OPENING = "\n\nThe final answer is"

CHARACTERS = "+-*/^=<>()[]{}_|" + string.digits + string.ascii_letters
COMMANDS = r"""
    \left( \right) \left[ \right] \left\{ \right\} \begin{pmatrix} \end{pmatrix} \left \right
    \leq \geq \neq \approx \sim \equiv \to \implies \iff \frac \dfrac \sqrt \sqrt[] \binom \choose
    \in \notin \subset \supset \subseteq \supseteq \cup \cap \emptyset \varnothing \forall \exists
    \pi \theta \alpha \beta \gamma \delta \epsilon \zeta \lambda \mu \nu \wedge \vee \neg
    \sin \cos \tan \arcsin \arccos \arctan \log \ln \exp \cot \cotg \sec \csc
    \cdot \dots \ldots \cdots \vdots \ddots \mathbb \mathbf \mathrm \text \mbox \operatorname
    \infty \circ \prime \ast \star \triangle \triangleleft \triangleright \perp \parallel \angle
    \boxed \overline \underline \lceil \rceil \lfloor \rfloor \mid \vert \Vert \because \therefore
    \sum \prod \int \lim \min \max \arg \deg \gcd
"""
SYMBOLS = (*CHARACTERS, *COMMANDS.split())
"""Where one of these is the token, the step is explicit; of a symbol of several tokens, each of them counts."""


@pydantic_dataclass(frozen=True)
class SwiReasoningSettings:
    """The release's defaults. `a0` is 0.1 to 1.0 there, by model and data set.

    `max_switches` None is without switch control.

    `close` is what switch control forces before its last resort: by default `</think>` for Qwen and the same between
    blank lines for others. `exit_mix` is what a step that turns normal mixes with E[</think>]: s, or E[y].
    """

    a0: PositiveShare = 1.0
    b0: PositiveShare = 0.7
    window: NonNegative = 512
    max_switches: Count | None = None
    answer_tokens: Count = 32
    close: str | None = None
    exit_mix: Literal["token", "soft"] = "soft"


@dataclass
class Memory:
    """One row: its mode and what it depends on."""

    longest: int  # T_max
    steps: int = 0
    soft: bool = True
    stay: int = 0
    reference: float = 0.0  # H_ref
    locked: bool = False
    switches: int = 0  # to normal
    queue: deque[int] = field(default_factory=deque)
    tokens_left: int | None = None

    def switch(self, uncertainty: float, window: int) -> str:
        """Take the step's H; returns "normal" or "soft" where the mode turns, else ""."""
        if self.steps == 0:
            self.reference = uncertainty
            return ""
        self.stay += 1
        if self.soft and uncertainty < self.reference:
            turned = "normal"
            self.switches += 1
        elif not self.soft and uncertainty > self.reference and self.stay >= window and not self.locked:
            turned = "soft"
        else:
            return ""
        self.soft, self.stay, self.reference = turned == "soft", 0, uncertainty
        return turned


@dataclass(frozen=True)
class Mix:
    """share * (what is read) + (1 - share) * E[token]; `of_s` where s goes in although the step is explicit."""

    share: float
    token: int
    of_s: bool = False


class SwiReasoning:
    """The rule, on one backbone: a `Sampler`."""

    def __init__(self, backbone: Backbone, settings: SwiReasoningSettings) -> None:
        self.backbone, self.settings = backbone, settings
        tokenizer, vocabulary = backbone.tokenizer, backbone.tokenizer.get_vocab()
        begin, end = vocabulary.get(BEGIN), vocabulary.get(END)
        self.signals = begin is not None and end is not None
        self.begin, self.end = (begin, end) if self.signals else (None, None)
        self.line_break = vocabulary.get(LINE_BREAK)
        self.explicit = symbol_ids(tokenizer)
        close = settings.close or FAMILIES[backbone.model.config.model_type].end_of_thought
        self.close = tokenizer.encode(close, add_special_tokens=False) if self.signals else []
        self.open = tokenizer.encode(END * self.signals + OPENING, add_special_tokens=False)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling, max_new_tokens: int) -> Memory:
        return Memory(max_new_tokens)

    def choose(
        self, logits: Float[Tensor, "rows vocab"], memories: Sequence[Memory], drawn: Sequence[int]
    ) -> list[Choice]:
        tokens, p = list(drawn), logits.softmax(dim=-1)
        entropy = torch.special.entr(p).sum(dim=-1)
        soft, ended, mixes = [], [], []
        for row, (memory, uncertainty) in enumerate(zip(memories, entropy.tolist(), strict=True)):
            tokens[row] = self._token(memory, tokens[row])
            turned = memory.switch(uncertainty, self.settings.window)
            soft.append(memory.soft and not memory.locked and tokens[row] not in self.explicit)
            mixes.append(self._mix(memory, turned, soft[row]))
            ended.append(self._control(memory, turned))
            memory.steps += 1
        embeds = self.backbone.embed(torch.tensor(tokens, device=logits.device))
        from_s = [is_soft or (mix is not None and mix.of_s) for is_soft, mix in zip(soft, mixes, strict=True)]
        if any(from_s):
            mask = torch.tensor(from_s, device=logits.device)
            embeds[mask] = p[mask].to(embeds.dtype) @ self.backbone.embedding
        for row, mix in enumerate(mixes):
            if mix is not None:
                embeds[row] = mix.share * embeds[row] + (1 - mix.share) * self.backbone.embedding[mix.token]
        return list(map(Choice, tokens, soft, ended, embeds))

    def _token(self, memory: Memory, drawn: int) -> int:
        """The token of the step: a queued one goes before the drawn one, which alone can lock."""
        memory.locked |= drawn == self.end
        return memory.queue.popleft() if memory.queue else drawn

    def _mix(self, memory: Memory, turned: str, soft: bool) -> Mix | None:
        """The signal that is mixed into what the step reads."""
        s, passed = self.settings, memory.steps / memory.longest
        if memory.steps == 0:
            return Mix(0.9, self.line_break) if soft and self.line_break is not None else None
        if turned == "soft" and soft and self.begin is not None:
            return Mix(s.a0 + (1 - s.a0) * passed, self.begin)
        if turned == "normal" and self.end is not None:
            return Mix(s.b0 + (1 - s.b0) * passed, self.end, of_s=s.exit_mix == "soft")
        return None

    def _control(self, memory: Memory, turned: str) -> bool:
        """Queue what switch control forces; returns whether the answer ends here."""
        limit = self.settings.max_switches
        if limit is None:
            return False
        if turned == "normal" and memory.switches > 2 * limit:
            memory.queue = deque(self.open)
            memory.tokens_left = self.settings.answer_tokens
        elif turned == "normal" and memory.switches >= limit:
            memory.queue = deque(self.close)
        if memory.tokens_left is not None:
            memory.tokens_left -= 1
        return memory.tokens_left == 0


def symbol_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that some symbol is made of."""
    return frozenset(id for symbol in SYMBOLS for id in tokenizer.encode(symbol, add_special_tokens=False))


def reasoner(model: Tyler, settings: SwiReasoningSettings) -> TylerReasoner:
    """SwiReasoning on a model's plain backbone."""
    return TylerReasoner(
        "swireasoning", backbone_alone(model), router=Never(), sampler=SwiReasoning(model.backbone, settings)
    )


METHOD = Method(SwiReasoningSettings, reasoner, (LengthSetting("max_switches", lowest=1, only_shortens=True),))
