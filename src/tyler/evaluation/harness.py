"""Tyler models in EleutherAI's lm-evaluation-harness: importing this module makes `model="tyler"` known to it.

`python -m tyler.evaluation.harness` is the harness's own command line with that done. Every answer is decoded by our
engine, with operators; every likelihood is of visible tokens alone, without them (see `TylerLM`).
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from tyler.config.sizes import bytes_of
from tyler.engine.request import FinishEvent, Request
from tyler.engine.routing import Never, Router
from tyler.engine.sampling import Sampling, seed_of
from tyler.evaluation.command import LONGEST_WAIT
from tyler.evaluation.options import Answering
from tyler.model import Tyler
from tyler.tasks.prompts import written_turns

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
except ImportError as error:
    raise ImportError(
        f"tyler.evaluation.harness needs lm-evaluation-harness ({error}); pip install 'path/to/tyler[lm-eval]'"
    ) from error

logger = logging.getLogger(__name__)

SLOTS = Answering.slots
"""Answers decoded, or texts scored, at once by default."""

CHUNK = 1024
"""Positions whose logits exist at the same time."""

GENERATION_SETTINGS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")

Scored = tuple[tuple[str, str] | None, list[int], list[int]]
"""A text as the harness asks for it (None for a window of a long one), and the ids of its context and continuation."""


@register_model("tyler")
class TylerLM(TemplateLM):
    """A Tyler model as the harness sees one: it generates with operators and is scored without.

    `generate_until` decodes all its contexts with continuous batching. A context is read unmodified: with
    `apply_chat_template` it holds the chat template's tokens, else it is plain text. Greedy unless the task samples;
    `max_gen_toks` counts actions (visible tokens and operator calls). A context that leaves no room for them loses its
    left end.

    `loglikelihood(x, y)` is the sum over the tokens of y of log p(y_t | x, y_<t), where p is the policy's distribution
    over V: its logits (the backbone's, with eta after Stage 2) with every operator masked, softmaxed in float32, over a
    context without latents. That is decoding with budget 0, or under the router Never; before Stage 2 it is the
    backbone's own likelihood. No router or budget changes it. `is_greedy` says whether every token of y is the most
    probable one. `loglikelihood_rolling` sums it over windows of a long text, each token scored once.
    """

    def __init__(
        self,
        pretrained: str | Tyler,
        router: str | Router | None = None,
        budget: int | None = None,
        max_new_tokens: int = 256,
        slots: int | None = None,
        batch_size: int | str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        backbone: str | None = None,
        seed: int = Answering.seed,
        memory: int | str | None = None,
    ) -> None:
        """Load a model, or take a loaded one.

        `pretrained`, `backbone`, `dtype` and `device` are those of `Tyler.from_pretrained`; a process of `accelerate
        launch` uses its own device. `router` is a Router, or learned, never, boundaries, boundaries:RATE; None is what
        the model's last stage trained for. `budget` caps the operator calls of each answer. `max_new_tokens` is for
        tasks without `max_gen_toks` (the harness's default is 256). `slots` (or the harness's `batch_size`, where
        "auto" is 32) changes speed and memory, not results. `seed` is for tasks that sample. `memory` bounds the
        bytes of context and caches of what is generated, as 4GB.
        """
        super().__init__()
        check_whole_numbers(budget=budget, max_new_tokens=max_new_tokens, slots=slots, seed=seed)
        self.state = PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
        self._rank, self._world_size = self.state.process_index, self.state.num_processes
        if isinstance(pretrained, str):
            own = str(self.state.device) if self.world_size > 1 else device
            pretrained = Tyler.from_pretrained(pretrained, backbone=backbone, dtype=dtype, device=own)
        self.router = pretrained.routed(router)
        self.budget, self.max_new_tokens, self.seed = budget, max_new_tokens, seed
        self.slots = slots or slots_of(batch_size)
        self.memory = None if memory is None else bound_of(memory)
        calls = budget != 0 and not isinstance(self.router, Never)
        self.model = pretrained if calls else pretrained.with_heads({})  # what is never called needs no room
        self.tokenizer = pretrained.backbone.tokenizer
        self._device = pretrained.backbone.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> TylerLM:
        """A model from `--model_args`; they win over what the harness adds (batch_size, device).

        Raises ValueError for an argument that there is not, and without `pretrained`.
        """
        allowed = list(inspect.signature(cls).parameters)
        if unknown := [name for name in arg_dict if name not in allowed]:
            raise ValueError(f"model_args: {', '.join(unknown)} is unknown; allowed are {', '.join(allowed)}")
        if "pretrained" not in arg_dict:
            raise ValueError("model_args needs pretrained=MODEL: a saved model, a run, a backbone's folder or Hub id")
        added = {name: value for name, value in (additional_config or {}).items() if name in allowed}
        if str(added.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del added["device"]  # the harness's command line says cuda:0 by default
        return cls(**added | dict(arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> TylerLM:
        """A model from `pretrained=RUN,router=learned,budget=5`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # -- what the harness asks about a model -----------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        return self.model.backbone.max_positions

    @property
    def max_gen_toks(self) -> int:
        return self.max_new_tokens

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """Token ids; the tokenizer's own first token is added unless the text already starts with it."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(str(self.tokenizer.decode([self.prefix_token_id])))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns in the tokenizer's chat template, thinking as the model's own prompt has it."""
        thinking = self.model.prompt.thinking
        return written_turns(self.tokenizer, chat_history, thinking, answered=not add_generation_prompt)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results: which weights answered, and under which setting."""
        return {
            "model_num_parameters": self.model.backbone.model.num_parameters(),
            "model_dtype": str(self.model.backbone.dtype),
            "model_sha": self.model.fingerprint(),
            "stage": self.model.stage,
            "router": repr(self.router),
            "budget": self.budget,
        }

    # -- several processes -----------------------------------------------------------------------------------------

    def all_gather(self, tensor: Tensor) -> Tensor:
        return gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        gathered = gather_object([obj])
        return gathered if self.rank == dst else None

    def barrier(self) -> None:
        self.state.wait_for_everyone()

    # -- answers ---------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first stop string. Raises ValueError for a setting not known.

        Contexts that come more than once (`repeats`) are sampled with different seeds.
        """
        asked, seen = [], Counter[str]()
        for instance in requests:
            context, settings = instance.args
            asked.append(self.request(context, settings, repeat=seen[context]))
            seen[context] += 1
        texts: dict[int, str] = {}
        events = self.model.shared_engine.events(asked, slots=self.slots, memory=self.memory, streamed=False)
        with self._bar(len(asked), "generate_until", disable_tqdm) as bar:
            for event in events:
                if isinstance(event, FinishEvent):
                    texts[event.index] = event.trajectory.text
                    self.cache_hook.add_partial("generate_until", requests[event.index].args, event.trajectory.text)
                    bar.update()
        return [texts[index] for index in range(len(asked))]

    def request(self, context: str, settings: Mapping[str, Any], repeat: int = 0) -> Request:
        """What the engine is asked for one context and a task's `generation_kwargs`."""
        known = normalize_gen_kwargs(dict(settings), self.max_new_tokens)
        if unknown := [name for name in known if name not in GENERATION_SETTINGS]:
            raise ValueError(
                f"the task's generation_kwargs set {', '.join(unknown)}, which Tyler does not know; "
                f"allowed are {', '.join(GENERATION_SETTINGS)}"
            )
        return Request(
            prompt_ids=self._fit(self.tok_encode(context) or [self.prefix_token_id], known["max_gen_toks"]),
            router=self.router,
            sampling=Sampling(
                temperature=float(known.get("temperature", 0.0)),
                top_k=int(known.get("top_k", 0)),
                top_p=float(known.get("top_p", 1.0)),
                seed=seed_of(self.seed, context, repeat),
            ),
            budget=self.budget,
            max_new_tokens=known["max_gen_toks"],
            stop=tuple(stop for stop in known["until"] if stop),
        )

    def _fit(self, ids: list[int], max_gen_toks: int) -> list[int]:
        """The end of a context that leaves room for an answer, or all of it."""
        longest = max((head.num_latents for head in self.model.heads.values()), default=1)
        room = self.max_length - max_gen_toks - (longest - 1)  # the engine keeps room for one whole operator call
        if room < 1:
            raise ValueError(
                f"max_gen_toks={max_gen_toks} leaves no room for a context in the {self.max_length} positions of this "
                "model; ask for fewer, with --gen_kwargs max_gen_toks=N or the model argument max_new_tokens"
            )
        if len(ids) > room:
            logger.warning("a context of %d tokens is cut to its last %d to fit the model", len(ids), room)
        return ids[-room:]

    # -- likelihoods -----------------------------------------------------------------------------------------------

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p of each whole text: every token once, with as much of the text before it as the model can hold."""
        windows: list[Scored] = []
        owners: list[int] = []
        for index, instance in enumerate(requests):
            ids = self.tok_encode(instance.args[0])
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            found = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += found
            owners += [index] * len(found)
        totals = [0.0] * len(requests)
        for index, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[index] += logprob
        for instance, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", instance.args, total)
        return totals

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, **unused: Any
    ) -> list[tuple[float, bool]]:
        """log p and is_greedy of each continuation; continuations of one context that differ in their end share it."""
        sharing: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, (_, context, continuation) in enumerate(requests):
            sharing[self._read_ids(context, continuation)].append(index)
        inputs = sorted(sharing, key=len, reverse=True)
        answers: dict[int, tuple[float, bool]] = {}
        with self._bar(len(requests), "loglikelihood", disable_tqdm) as bar:
            for ids, hidden in self._hidden(inputs):
                for index in sharing[ids]:
                    strings, _, continuation = requests[index]
                    answers[index] = self._score(hidden[-len(continuation) :], continuation)
                    if strings is not None:
                        self.cache_hook.add_partial("loglikelihood", strings, answers[index])
                    bar.update()
        return [answers[index] for index in range(len(requests))]

    def _read_ids(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """What is read to score a continuation: all but its last token, without what does not fit on the left."""
        if not 0 < len(continuation) <= self.max_length:
            raise ValueError(
                f"a continuation has {len(continuation)} tokens; 1 to {self.max_length} can be scored by this model"
            )
        length = len(context) + len(continuation) - 1
        if length > self.max_length:
            logger.warning("a text of %d tokens is cut to its last %d to fit the model", length, self.max_length)
        return tuple((context + continuation)[-(self.max_length + 1) : -1])

    def _hidden(self, inputs: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], Float[Tensor, "seq dim"]]]:
        """Each input with the policy's last hidden states of it; padding is on the right, where nothing sees it."""
        decoder = self.model.policy.decoder
        for start in range(0, len(inputs), self.slots):
            batch = inputs[start : start + self.slots]
            padded = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True).to(self.device)
            embeds = self.model.backbone.embed(padded)
            hidden = decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state
            for ids, row in zip(batch, hidden, strict=True):
                yield ids, row[: len(ids)]

    def _score(self, hidden: Float[Tensor, "seq dim"], continuation: list[int]) -> tuple[float, bool]:
        """Sum of log p over V of the tokens that these states predict, and whether each is the most probable."""
        logprob, greedy = 0.0, True
        targets = torch.tensor(continuation, device=self.device)
        for states, ids in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
            logprobs = self.model.policy.logits(states)[:, : self.model.backbone.vocab_size].log_softmax(dim=-1)
            logprob += float(logprobs.gather(-1, ids[:, None]).sum())
            greedy &= bool((logprobs.argmax(dim=-1) == ids).all())
        return logprob, greedy

    def _bar(self, total: int, name: str, disable: bool) -> tqdm:
        return tqdm(total=total, desc=f"Running {name} requests", disable=disable or self.rank != 0)


def bound_of(memory: int | str) -> int:
    """A bound in bytes. Raises ValueError for an invalid size."""
    try:
        return bytes_of(memory)
    except ValueError as error:
        raise ValueError(f"memory={error}") from None


def slots_of(batch_size: int | str | None) -> int:
    """The harness's batch size as a number of slots; "auto" is 32: answers do not depend on it."""
    text = str(SLOTS if batch_size is None else batch_size)
    if text.startswith("auto"):
        return SLOTS
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"batch_size={batch_size!r}; it must be 1 or more, or 'auto'")
    return int(text)


def check_whole_numbers(**arguments: int | None) -> None:
    """Raise ValueError for an argument that `--model_args` did not turn into a whole number of 0 or more."""
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ValueError(f"{name}={value!r}; it must be a whole number, 0 or more")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
